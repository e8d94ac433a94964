"""Prints every scalar that TensorBoard's own reader finds in each folder of event files: folder, tag, step and value, separated by
tabs."""
import sys

from tensorboard.backend.event_processing.event_accumulator import SCALARS, EventAccumulator

for folder in sys.argv[1:]:
    accumulator = EventAccumulator(folder, size_guidance={SCALARS: 0})
    accumulator.Reload()
    for tag in accumulator.Tags()["scalars"]:
        for event in accumulator.Scalars(tag):
            print(f"{folder}\t{tag}\t{event.step}\t{event.value!r}")
