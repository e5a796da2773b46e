//! Generated loads with stated properties.
