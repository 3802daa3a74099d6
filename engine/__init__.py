"""An MLX inference engine whose lanes compose; importing it readies the backend."""

from engine.backend import prepare

prepare()
