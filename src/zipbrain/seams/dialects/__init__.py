"""Dialects: one file per kind of transformer block, one line here to register it. Later ones are tried first."""

from zipbrain.seams.dialects import criss_cross as criss_cross
from zipbrain.seams.dialects import encoder_layer as encoder_layer
from zipbrain.seams.dialects import fused_pair as fused_pair
from zipbrain.seams.dialects import hand_written as hand_written
from zipbrain.seams.dialects import hugging_face as hugging_face
from zipbrain.seams.dialects import lucidrains as lucidrains
from zipbrain.seams.dialects import pbt as pbt
from zipbrain.seams.dialects import residual_pair as residual_pair
from zipbrain.seams.dialects import rotary as rotary
from zipbrain.seams.dialects import timm_like as timm_like
