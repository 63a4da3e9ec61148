"""The paper's networks, one file each; `heatbath.tasks.registry` finds whatever lies here."""
