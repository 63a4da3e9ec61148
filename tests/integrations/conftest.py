"""Two devices for JAX, so that `pmap` has something to map over; its first use makes them."""

import jax

jax.config.update("jax_num_cpu_devices", 2)
