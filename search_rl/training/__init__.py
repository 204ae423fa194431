"""Config to verl: the agent-loop adapter, the CPU platform, SFT and the run folder.

The only package that imports verl or ray. verl finds `platform` through the entry-point group `verl.plugins` in
every process, and `plugin` through `model.external_lib` in the processes that build a model config.
"""
