#!/bin/sh
# Make sure that an OpenCL device is there: take Debian's PoCL if none is and we may, else say what to install.
python=$1
has_device() { "$python" -c 'import sys, pyopencl as cl
try: sys.exit(not any(p.get_devices() for p in cl.get_platforms()))
except cl.Error: sys.exit(1)' 2>/dev/null; }
has_device && exit 0
if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    echo "No OpenCL device; installing Debian's PoCL"
    { apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq pocl-opencl-icd ocl-icd-libopencl1; } >/dev/null 2>&1
fi
has_device || echo "No OpenCL device: install a driver (Debian: apt-get install pocl-opencl-icd ocl-icd-libopencl1). Going on without."
exit 0
