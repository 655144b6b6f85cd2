"""The representative of least mass: networks as flows, the solver, its certificate."""
