"""`t2t_jax.teaching`: put a student's functions into trained models, and check them."""

from t2t_jax.extras.teaching.checks import check_attention as check_attention
from t2t_jax.extras.teaching.checks import check_multi_head as check_multi_head
from t2t_jax.extras.teaching.checks import check_positions as check_positions
from t2t_jax.extras.teaching.replacement import replace as replace
from t2t_jax.extras.teaching.search import check_beam as check_beam
