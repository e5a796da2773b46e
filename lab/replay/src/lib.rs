//! A trace through a node on simulated disks, in virtual time.
