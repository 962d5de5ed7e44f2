"""Demand to capacity: will a model fit, on how many devices, how long, at what cost. Pure.

The modules stand in layers: `catalogue` and `architecture` (facts), `kernels`, `collectives`,
`memory`, `train`, `serve` (mechanisms), `regression` and `calibrate_*` (what is fitted), `search`,
`finetune`, `plan_serve`, `devices` (answers), `tables_*` and `validate*` (measured tables).
"""
