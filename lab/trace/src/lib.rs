//! Traces of block requests: the forms they come in, read and written, and their anatomy.

mod request;

pub use request::{Op, Request};
