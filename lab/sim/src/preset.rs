//! Disk models by name, and by numbers of one's own: what a configuration says instead of a path.

use crate::disk::DiskSpec;
use crate::model::{Constant, Ssd, SsdSpec};
use crate::rotating::{MOST_NS, RotatingSpec};
use kura_block::BLOCK_BYTES;
use serde::de::value::MapAccessDeserializer;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use std::fmt;
use std::str::FromStr;

/// How a disk behaves: a model with a name, or one with numbers of one's own.
///
/// As text it is the name; in a configuration it is that, or a table of the numbers: `{ ssd = { ... } }`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Model {
    /// `nvme`: [`SsdSpec::nvme`].
    Nvme,
    /// `sata-ssd`: [`SsdSpec::sata`].
    SataSsd,
    /// `hdd-7200`: [`RotatingSpec::hdd_7200`].
    Hdd7200,
    /// `hdd-10k`: [`RotatingSpec::hdd_10k`].
    Hdd10k,
    /// `mogi1996`: [`RotatingSpec::paper`], the disk of the hot mirroring paper.
    Mogi1996,
    /// Every operation takes the same time.
    Constant(Constant),
    /// A solid-state device.
    Ssd(SsdSpec),
    /// A disk that turns; with no cylinders, it has as many as its size needs.
    Rotating(RotatingSpec),
}

const NAMES: [(&str, Model); 5] = [
    ("nvme", Model::Nvme),
    ("sata-ssd", Model::SataSsd),
    ("hdd-7200", Model::Hdd7200),
    ("hdd-10k", Model::Hdd10k),
    ("mogi1996", Model::Mogi1996),
];

/// The models with numbers of one's own, as a configuration writes them.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Own {
    Constant(Constant),
    Ssd(SsdSpec),
    Rotating(RotatingSpec),
}

impl Model {
    /// Its name; `None` with numbers of one's own.
    pub fn name(&self) -> Option<&'static str> {
        NAMES.iter().find(|(_, model)| model == self).map(|(name, _)| *name)
    }

    /// The size a disk has that says none: that of models which are one certain disk.
    pub fn size_bytes(&self) -> Option<u64> {
        match self {
            Self::Mogi1996 => Some(RotatingSpec::paper().size_bytes()),
            Self::Rotating(spec) if spec.cylinders > 0 => Some(spec.size_bytes()),
            _ => None,
        }
    }

    /// A disk of `size_bytes`, rounded down to whole blocks. One that turns gets the cylinders it lacks for that.
    pub fn disk(&self, size_bytes: u64) -> DiskSpec {
        let size_bytes = size_bytes / BLOCK_BYTES as u64 * BLOCK_BYTES as u64;
        let turning = |spec: RotatingSpec| DiskSpec { size_bytes, ..DiskSpec::rotating(spec.holding(size_bytes)) };
        match *self {
            Self::Nvme => DiskSpec::new(size_bytes, Ssd::new(SsdSpec::nvme())),
            Self::SataSsd => DiskSpec::new(size_bytes, Ssd::new(SsdSpec::sata())),
            Self::Hdd7200 => turning(RotatingSpec::hdd_7200(size_bytes)),
            Self::Hdd10k => turning(RotatingSpec::hdd_10k(size_bytes)),
            Self::Mogi1996 => turning(RotatingSpec::paper()),
            Self::Constant(constant) => DiskSpec::new(size_bytes, constant),
            Self::Ssd(spec) => DiskSpec::new(size_bytes, Ssd::new(spec)),
            Self::Rotating(spec) => turning(spec),
        }
    }

    /// Refuses numbers that are no disk's.
    fn check(self) -> Result<Self, String> {
        let too_long = |times: &[u64]| times.iter().any(|ns| *ns > MOST_NS);
        let wrong = match &self {
            Self::Constant(spec) if too_long(&[spec.service_ns]) => Some("service_ns must be a minute at most"),
            Self::Ssd(spec) if too_long(&[spec.read_latency_ns, spec.write_latency_ns, spec.flush_latency_ns]) => {
                Some("read_latency_ns, write_latency_ns and flush_latency_ns must be a minute at most")
            }
            Self::Constant(spec) if spec.channels == 0 => Some("channels must be 1 or more"),
            Self::Ssd(spec) if spec.channels == 0 => Some("channels must be 1 or more"),
            Self::Ssd(spec) if spec.read_bytes_per_s == 0 || spec.write_bytes_per_s == 0 => {
                Some("read_bytes_per_s and write_bytes_per_s must be 1 or more")
            }
            Self::Rotating(spec) => spec.wrong(),
            _ => None,
        };
        wrong.map_or(Ok(self), |wrong| Err(format!("{self}: {wrong}")))
    }
}

impl fmt::Display for Model {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name().unwrap_or(match self {
            Self::Constant(_) => "constant",
            Self::Ssd(_) => "ssd",
            _ => "rotating",
        }))
    }
}

impl FromStr for Model {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let found = NAMES.iter().find(|(name, _)| *name == text).map(|(_, model)| *model);
        found.ok_or_else(|| {
            let names: Vec<&str> = NAMES.iter().map(|(name, _)| *name).collect();
            format!(
                "no such disk model: {text}; use one of: {}, or a table of numbers: constant, ssd or rotating",
                names.join(", ")
            )
        })
    }
}

impl Serialize for Model {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let own = match *self {
            Self::Constant(constant) => Own::Constant(constant),
            Self::Ssd(spec) => Own::Ssd(spec),
            Self::Rotating(spec) => Own::Rotating(spec),
            _ => return self.to_string().serialize(serializer),
        };
        own.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Model {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visitor;
        impl<'de> de::Visitor<'de> for Visitor {
            type Value = Model;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a disk model: a name such as \"nvme\", or a table of numbers")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Model, E> {
                text.parse().map_err(E::custom)
            }

            fn visit_map<A: de::MapAccess<'de>>(self, map: A) -> Result<Model, A::Error> {
                let model = match Own::deserialize(MapAccessDeserializer::new(map))? {
                    Own::Constant(constant) => Model::Constant(constant),
                    Own::Ssd(spec) => Model::Ssd(spec),
                    Own::Rotating(spec) => Model::Rotating(spec),
                };
                model.check().map_err(de::Error::custom)
            }
        }
        deserializer.deserialize_any(Visitor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn own() -> [Model; 3] {
        [
            Model::Constant(Constant { service_ns: 1000, channels: 1 }),
            Model::Ssd(SsdSpec::sata()),
            Model::Rotating(RotatingSpec { cylinders: 0, ..RotatingSpec::paper() }),
        ]
    }

    #[test]
    fn a_model_is_read_as_it_is_written() {
        for model in NAMES.map(|(_, model)| model).into_iter().chain(own()) {
            let text = serde_json::to_string(&model).unwrap();
            assert_eq!(serde_json::from_str::<Model>(&text).unwrap(), model, "{text}");
        }
        assert_eq!(serde_json::to_string(&Model::SataSsd).unwrap(), "\"sata-ssd\"");
    }

    #[test]
    fn a_disk_has_the_size_asked_for_whatever_its_model() {
        for model in NAMES.map(|(_, model)| model).into_iter().chain(own()) {
            for size_bytes in [8 << 20, 3 << 30] {
                assert_eq!(model.disk(size_bytes + 1000).size_bytes, size_bytes, "{model}");
                let sim = crate::Sim::new(1);
                let disk = sim.disk("disk", model.disk(size_bytes));
                let last =
                    sim.block_on(async { kura_block::Block::read(&*disk.open(), size_bytes - 4096, 4096).await });
                assert_eq!(last.map(|bytes| bytes.len()).ok(), Some(4096), "{model}");
            }
        }
    }

    #[test]
    fn numbers_that_are_no_disks_are_refused() {
        let changed = |model: Model, field: &str, value: &str| {
            let mut text = serde_json::to_value(model).unwrap();
            text[model.to_string()][field] = value.parse().unwrap();
            text.to_string()
        };
        let [_, ssd, turning] = own();
        let vast = RotatingSpec { cylinders: 1 << 32, sectors_per_track: 1 << 20, ..RotatingSpec::paper() };
        let vast = Model::Rotating(vast);
        let rotating = |field: &str, value: &str| changed(turning, field, value);
        let cases = [
            ("\"floppy\"".to_owned(), "no such disk model: floppy; use one of: nvme, sata-ssd"),
            ("{\"constant\":{\"service_ns\":5,\"channels\":0}}".to_owned(), "constant: channels must be 1 or more"),
            ("{\"constant\":{\"service_ms\":5}}".to_owned(), "unknown field `service_ms`"),
            ("{\"constant\":{\"service_ns\":18446744073709551615}}".to_owned(), "service_ns must be a minute at most"),
            (changed(ssd, "read_latency_ns", "60000000001"), "flush_latency_ns must be a minute at most"),
            (rotating("seek_root_ms", "60000.1"), "rotating: a seek takes"),
            (changed(vast, "seek_linear_ms", "0"), "rotating: it holds more than 8 EiB"),
            (rotating("sector_bytes", "1000"), "rotating: sector_bytes must be 512, 1024, 2048 or 4096"),
            (rotating("revolution_ns", "0"), "rotating: revolution_ns"),
            (rotating("seek_fixed_ms", "-1"), "rotating: a seek takes"),
        ];
        for (text, wrong) in cases {
            let error = serde_json::from_str::<Model>(&text).unwrap_err().to_string();
            assert!(error.contains(wrong), "{text}: {error}");
        }
    }
}
