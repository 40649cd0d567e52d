"""ParamAttr: the user's attributes of a layer's parameter."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from fluidlite.base.arguments import check_bool, check_method, finite
from fluidlite.base.errors import ProgramError
from fluidlite.base.weak_objects import WeakObjects
from fluidlite.initializer import Constant, Initializer, Xavier, global_initializers
from fluidlite.regularizer import WeightDecayRegularizer

__all__ = ["ParamAttr", "WeightNormParamAttr"]


class ParamAttr:
    """Name, initialisation and training of a parameter.

    Parameters
    ----------
    name : str, optional
        Parameters of the same name are shared between layers. Default: a name by the layer (``fc_0.w_0``).
    initializer : Initializer, optional
        Default: Xavier for weights, 0 for biases.
    learning_rate : float
        Factor of the optimiser's learning rate.
    regularizer : WeightDecayRegularizer, optional
        Replaces the optimiser's.
    trainable : bool
    gradient_clip : object, optional
        One of ``fluid.clip``'s.
    do_model_average : bool
        Whether ``ModelAverage`` and ``ExponentialMovingAverage`` include it.
    """

    def __init__(
        self,
        name: str | None = None,
        initializer: Initializer | None = None,
        learning_rate: float = 1.0,
        regularizer: WeightDecayRegularizer | None = None,
        trainable: bool = True,
        gradient_clip: Any = None,
        do_model_average: bool = True,
    ) -> None:
        if name is not None and (not isinstance(name, str) or not name):
            raise ProgramError(f"ParamAttr: name is {name!r}; expected a text, or None for a name made by the layer")
        for argument, value, kind in (
            ("initializer", initializer, Initializer),
            ("regularizer", regularizer, WeightDecayRegularizer),
        ):
            if value is not None and not isinstance(value, kind):
                value_text = f"{type(value).__name__} {value!r}"
                raise ProgramError(f"ParamAttr: {argument} is {value_text}; expected one of fluid.{argument}'s objects")
        self.name = name
        self.initializer = initializer
        self.learning_rate = finite("ParamAttr: learning_rate", learning_rate)
        self.regularizer = regularizer
        self.trainable = check_bool("ParamAttr: trainable", trainable)
        clips = "one of fluid.clip's, such as GradientClipByGlobalNorm(1.0)"
        self.gradient_clip = check_method("ParamAttr: gradient_clip", gradient_clip, "create_operators", clips)
        self.model_average = check_bool("ParamAttr: do_model_average", do_model_average)

    @staticmethod
    def to_attr(value: Any) -> ParamAttr | bool | list[ParamAttr | bool]:
        """Convert a layer's ``param_attr`` or ``bias_attr`` to a ParamAttr or a list; False means no parameter.

        Raises
        ------
        ProgramError
            If it cannot be converted.
        """
        if value is None or value is True:
            return ParamAttr()
        if value is False or isinstance(value, ParamAttr):
            return value
        if isinstance(value, str):
            return ParamAttr(name=value)
        if isinstance(value, Initializer):
            return ParamAttr(initializer=value)
        if isinstance(value, WeightDecayRegularizer):
            return ParamAttr(regularizer=value)
        if isinstance(value, Sequence):
            items: list[ParamAttr | bool] = []
            for element in value:
                item = ParamAttr.to_attr(element)
                if isinstance(item, list):
                    raise ProgramError(f"a list of parameters' attributes holds {element!r}; expected no list in it")
                items.append(item)
            return items
        raise ProgramError(
            f"a parameter's attribute is {type(value).__name__} {value!r}; expected a ParamAttr, a name, "
            "an initializer, a regularizer, or False for no parameter"
        )

    _to_attr = to_attr

    def copy(self) -> ParamAttr:
        """A copy, which a layer completes."""
        other = ParamAttr.__new__(type(self))
        other.__dict__.update(self.__dict__)
        return other

    def set_default_initializer(self, initializer: Initializer) -> None:
        """Use ``initializer`` unless the user named one."""
        if self.initializer is None:
            self.initializer = initializer

    def set_default_param_initializer(self) -> None:
        """Use Xavier's, or that of ``set_global_initializer``, unless the user named one."""
        self.set_default_initializer(global_initializers()[0] or Xavier())

    def set_default_bias_initializer(self) -> None:
        """Use 0, or that of ``set_global_initializer``, unless the user named one."""
        self.set_default_initializer(global_initializers()[1] or Constant(0.0))

    def to_kwargs(self) -> dict[str, Any]:
        """The keyword arguments of ``Block.create_parameter``."""
        return {
            "optimize_attr": {"learning_rate": self.learning_rate},
            "regularizer": self.regularizer,
            "trainable": self.trainable,
            "gradient_clip_attr": self.gradient_clip,
            "do_model_average": self.model_average,
        }

    def __repr__(self) -> str:
        return f"{type(self).__name__}(" + ", ".join(f"{name}={value!r}" for name, value in vars(self).items()) + ")"


class WeightNormParamAttr(ParamAttr):
    """Weight normalisation (Salimans and Kingma, 2016): w = g v / |v|, with g and v as the parameters.

    Their names are ``<name>_g`` and ``<name>_v``. v is initialised by the initializer, g with the norms of v, so that w
    equals v initially.

    Parameters
    ----------
    dim : int, optional
        One norm for each index of this dim; None: a single norm.
    name, initializer, learning_rate, regularizer, trainable, gradient_clip, do_model_average
        As in :class:`ParamAttr`.

    Attributes
    ----------
    params_with_weight_norm : collection of Variable
        The weights of all programs that still exist.
    """

    params_with_weight_norm: ClassVar[WeakObjects[Any]] = WeakObjects()

    def __init__(
        self,
        dim: int | None = None,
        name: str | None = None,
        initializer: Initializer | None = None,
        learning_rate: float = 1.0,
        regularizer: WeightDecayRegularizer | None = None,
        trainable: bool = True,
        gradient_clip: Any = None,
        do_model_average: bool = False,
    ) -> None:
        if dim is not None and (isinstance(dim, bool) or not isinstance(dim, int)):
            raise ProgramError(f"WeightNormParamAttr: dim is {dim!r}; expected an int, or None for one norm in all")
        super().__init__(name, initializer, learning_rate, regularizer, trainable, gradient_clip, do_model_average)
        self.dim = dim
