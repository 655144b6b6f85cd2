"""The representative of least mass: networks as flows, the solver, and its certificate (a duality gap)."""
