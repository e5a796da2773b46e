//! Bytes, and clients, as sentences tell of them.

use std::fmt;

/// Bytes in the largest unit of which they are a whole number, or nearly so where that takes too many digits: `64 MiB`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Amount(pub u64);

impl fmt::Display for Amount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const UNITS: [&str; 6] = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
        let units = || UNITS.iter().enumerate().rev().map(|(at, name)| (1_u64 << (10 * (at + 1)), name));
        let whole = units().find(|(unit, _)| self.0 > 0 && self.0.is_multiple_of(*unit));
        if let Some((unit, name)) = whole.filter(|(unit, _)| self.0 / unit < 100_000) {
            return write!(f, "{} {name}", self.0 / unit);
        }
        match units().find(|(unit, _)| self.0 >= *unit) {
            Some((unit, name)) => write!(f, "{:.1} {name}", self.0 as f64 / unit as f64),
            None => write!(f, "{} bytes", self.0),
        }
    }
}

/// Clients of a volume, as people are told of them.
pub struct Clients(pub u32);

impl fmt::Display for Clients {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            1 => write!(f, "1 client has it open"),
            many => write!(f, "{many} clients have it open"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Amount, Clients};

    #[test]
    fn bytes_are_told_in_units() {
        for (bytes, told) in [
            (0, "0 bytes"),
            (1000, "1000 bytes"),
            (4096, "4 KiB"),
            (64 << 20, "64 MiB"),
            (1536 << 20, "1536 MiB"),
            ((1 << 40) + 4096, "1.0 TiB"),
            (1 << 50, "1 PiB"),
            (1_000_000, "976.6 KiB"),
        ] {
            assert_eq!(Amount(bytes).to_string(), told);
        }
    }

    #[test]
    fn one_client_is_not_several() {
        let told = [1, 2].map(|clients| Clients(clients).to_string());
        assert_eq!(told, ["1 client has it open", "2 clients have it open"]);
    }
}
