//! The model of `lib.rs`, point by point, from the outside.

mod durability;
mod executor;
mod faults;
mod service;
