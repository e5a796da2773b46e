//! The papers' tables and figures, run again: the frame and the experiments.
