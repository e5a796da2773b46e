//! The S3 door from outside, on a store in memory.

mod fuzz;
mod fuzz_body;
mod local;
