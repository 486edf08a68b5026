"""Builds the optional CPU kernel; everything else is in pyproject.toml."""

from setuptools import Extension, setup

setup(
    ext_modules=[
        Extension(
            "zipbrain.pooling.backends._cpu",
            ["src/zipbrain/pooling/backends/_cpu.c"],
            extra_compile_args=["-O3", "-fno-math-errno"],
            optional=True,  # without a C compiler the plain operators do the same work
        )
    ]
)
