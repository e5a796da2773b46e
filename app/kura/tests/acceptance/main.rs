//! The real binary under real clients: what a user of kura would see.
//!
//! Every test starts servers of its own in a folder of its own. The clients come from Debian's packages, which
//! `cargo xtask test` installs; loop devices and mounts want root.
#![allow(clippy::print_stdout, clippy::print_stderr)] // What a failed test has to say.

mod array;
mod bad_input;
mod block_devices;
mod care;
mod clients;
mod commands;
mod console;
mod crash;
mod damage;
mod filesystem;
mod full;
mod harness;
mod hostile;
mod interface;
mod jobs;
mod lab_forms;
mod lab_loads;
mod lab_replay;
mod lab_replicate;
mod lab_report;
mod lab_snapshot;
mod lab_traces;
mod limits;
mod link;
mod meddler;
mod mounts;
mod moves;
mod nbd;
mod object_cli;
mod pools;
mod rebuild;
mod replicate;
mod replicate_bucket;
mod replicate_bucket_crash;
mod replicate_bucket_strange;
mod replicate_database;
mod replicate_faults;
mod replicate_link;
mod replicate_nodes;
mod replicate_targets;
mod replicate_volume;
mod replicate_volume_crash;
mod rest;
mod s3;
mod s3_clients;
mod s3_crash;
mod s3_snapshots;
mod saving;
mod serving;
mod sharing;
mod snapshots;
mod snapshots_crash;
mod space;
mod suites;
mod tier;
mod tls;
mod trace;
