//! Sizes as people write them: `10G`, `512M`, `4096`.

use serde::{Deserialize, Deserializer, de};
use std::fmt;
use std::str::FromStr;

/// A size in bytes. A unit stands for a power of 1024: `1K` is 1024 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Size(pub u64);

/// Units from the largest down, each with its bytes as a power of two.
const UNITS: [(char, u32); 6] = [('E', 60), ('P', 50), ('T', 40), ('G', 30), ('M', 20), ('K', 10)];

impl FromStr for Size {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let bad = || format!("{text:?} is not a size: write bytes, or a number with K, M, G, T or P, as in 10G");
        let digits = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
        let (number, unit) = text.split_at(digits);
        let shift = match unit.to_ascii_uppercase().as_str() {
            "" | "B" => 0,
            unit => {
                let letter = unit.strip_suffix("IB").or(unit.strip_suffix('B')).unwrap_or(unit);
                UNITS.iter().find(|(name, _)| letter == name.to_string()).ok_or_else(bad)?.1
            }
        };
        let (whole, fraction) = number.split_once('.').unwrap_or((number, "0"));
        if whole.is_empty() || fraction.is_empty() || fraction.len() > 9 || (shift == 0 && number.contains('.')) {
            return Err(bad());
        }
        let large = || format!("{text:?} is larger than any disk: the most is {}", Size(1 << 62));
        let whole = whole.parse::<u64>().map_err(|_| large())?;
        let fraction_bytes =
            fraction.parse::<u64>().map_err(|_| bad())? as u128 * (1 << shift) / 10_u128.pow(fraction.len() as u32);
        let bytes = (u128::from(whole) << shift) + fraction_bytes;
        u64::try_from(bytes).ok().filter(|&bytes| bytes <= 1 << 62).map(Self).ok_or_else(large)
    }
}

/// The largest unit of which there is at least one, with at most two decimals, rounded down: never more than is there.
impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some((unit, shift)) = UNITS.iter().find(|(_, shift)| self.0 >> shift > 0) else {
            return f.pad(&self.0.to_string());
        };
        let whole = self.0 >> shift;
        let hundredths = (u128::from(self.0 & ((1 << shift) - 1)) * 100) >> shift;
        f.pad(&match hundredths {
            0 => format!("{whole}{unit}"),
            tens if tens % 10 == 0 => format!("{whole}.{}{unit}", tens / 10),
            _ => format!("{whole}.{hundredths:02}{unit}"),
        })
    }
}

impl<'de> Deserialize<'de> for Size {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visitor;
        impl de::Visitor<'_> for Visitor {
            type Value = Size;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a size: bytes, or text such as \"10G\"")
            }
            fn visit_i64<E: de::Error>(self, bytes: i64) -> Result<Size, E> {
                bytes.to_string().parse().map_err(E::custom)
            }
            fn visit_u64<E: de::Error>(self, bytes: u64) -> Result<Size, E> {
                bytes.to_string().parse().map_err(E::custom)
            }
            fn visit_str<E: de::Error>(self, text: &str) -> Result<Size, E> {
                text.parse().map_err(E::custom)
            }
        }
        deserializer.deserialize_any(Visitor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_as_people_write_them() {
        let cases = [
            ("0", Some(0)),
            ("4096", Some(4096)),
            ("4096B", Some(4096)),
            ("1k", Some(1024)),
            ("10G", Some(10 << 30)),
            ("10GiB", Some(10 << 30)),
            ("10gb", Some(10 << 30)),
            ("1.5T", Some(3 << 39)),
            ("0.25M", Some(1 << 18)),
            ("4E", Some(1 << 62)),
            ("5E", None),
            ("99999999999999999999", None),
            ("1.5", None),
            ("1.G", None),
            (".5G", None),
            ("1.2.3G", None),
            ("-1G", None),
            ("10X", None),
            ("G", None),
            ("", None),
            ("1 G", None),
            ("1iB", None),
        ];
        for (text, bytes) in cases {
            assert_eq!(text.parse::<Size>().ok(), bytes.map(Size), "{text:?}");
        }
    }

    #[test]
    fn sizes_are_shown_short_and_never_larger_than_they_are() {
        let cases = [
            (0, "0"),
            (1023, "1023"),
            (1024, "1K"),
            (1536, "1.5K"),
            (1 << 20, "1M"),
            (1_080_000_000, "1G"),
            ((10 << 30) - 1, "9.99G"),
            (10 << 30, "10G"),
            (3 << 39, "1.5T"),
        ];
        for (bytes, text) in cases {
            assert_eq!(Size(bytes).to_string(), text);
        }
    }
}
