//! kura
fn main() {}
