"""heatbath inside other libraries; each module imports its framework, and nothing imports a module but its user."""
