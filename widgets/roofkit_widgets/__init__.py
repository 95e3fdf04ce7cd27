"""Widgets of the apps: they draw what roofkit's views return and compute nothing. Room: widgets."""
from roofkit_widgets.controls import Controls
from roofkit_widgets.op_table import OpTable
from roofkit_widgets.roofline_plot import RooflinePlot
from roofkit_widgets.step_explorer import StepExplorer
from roofkit_widgets.time_breakdown_bar import TimeBreakdownBar

__all__ = ["Controls", "OpTable", "RooflinePlot", "StepExplorer", "TimeBreakdownBar"]
