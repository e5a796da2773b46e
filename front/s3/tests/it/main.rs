//! The S3 door from outside, on a store in memory.

mod asked;
mod conditions;
mod copies;
mod cut_off;
mod documents;
mod fuzz;
mod fuzz_body;
mod local;
#[path = "../../../../fuzz/mutated.rs"]
mod mutated;
mod past;
mod reads;
mod refused;
mod rules;
mod settings;
mod signing;
mod stalls;
mod switched;
mod uploads;
