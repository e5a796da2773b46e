//! What is held against each other.

use super::tiered::{Buffer, TieredSpec};
use kura_tier::{FixedSettings, OtfAstSettings, Settings, WorthSettings};
use serde::Serialize;

/// A system and all its parameters.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum System {
    /// A tiering driver.
    Tiered(TieredSpec),
    /// The block cache.
    Cache {
        /// Bytes of it.
        cache_bytes: u64,
    },
}

/// What the systems are made for.
#[derive(Clone, Copy, Debug)]
pub struct Scene {
    /// Bytes of the fast tier.
    pub fast_bytes: u64,
    /// Bytes of the paper's subLUN.
    pub sublun_bytes: u64,
    /// The paper's i: I/O a second under which nothing is decided.
    pub floor_iops: f64,
    /// The paper's n: subLUNs moved at once.
    pub moved_at_once: u32,
}

/// Names.
pub const OTF: &str = "otf-ast";
pub const OTF_UP: &str = "otf-ast-without-moves-down";
pub const OTF_OPEN: &str = "otf-ast-open-work";
pub const STATIC: &str = "static";
pub const CACHE: &str = "lru-cache";
pub const WORTH: &str = "worth";
pub const WORTH_ALONE: &str = "worth-without-write-buffer";

/// kura's policy, as a pool has it, and with the buffer that every other policy has: the difference is the write buffer's part of a
/// gain.
pub const OURS: [&str; 2] = [WORTH, WORTH_ALONE];

/// Names and titles, in the order of tables and legends.
pub const TITLES: [(&str, &str); 7] = [
    (WORTH, "worth (kura's)"),
    (WORTH_ALONE, "worth without its write buffer"),
    (OTF, "OTF-AST"),
    (OTF_UP, "OTF-AST without moves to HDD"),
    (OTF_OPEN, "OTF-AST with its open work"),
    (STATIC, "static tiering"),
    (CACHE, "LRU cache"),
];

/// What a system is called.
pub fn title(name: &str) -> &'static str {
    TITLES.iter().find(|(own, _)| *own == name).map_or("", |(_, title)| title)
}

impl Scene {
    /// The paper's: 24 GiB fast, subLUNs of 1 GiB.
    pub const PAPER: Self = Self { fast_bytes: 24 << 30, sublun_bytes: 1 << 30, floor_iops: 50.0, moved_at_once: 20 };

    /// A system of this name.
    pub fn system(&self, name: &str) -> System {
        let otf = OtfAstSettings {
            region_bytes: self.sublun_bytes,
            floor_iops: self.floor_iops,
            moved_at_once: self.moved_at_once,
            ..OtfAstSettings::default()
        };
        let subluns = TieredSpec {
            settings: Settings::OtfAst(otf.clone()),
            fast_bytes: self.fast_bytes,
            buffer: Buffer::Moving,
            buffer_bytes: self.sublun_bytes,
            only_dirty: false,
            never_down: false,
        };
        System::Tiered(match name {
            OTF => subluns,
            OTF_UP => TieredSpec { never_down: true, ..subluns },
            OTF_OPEN => {
                let settings = Settings::OtfAst(OtfAstSettings { throttle: true, drop_clean: true, ..otf });
                TieredSpec { settings, ..subluns }
            }
            STATIC => {
                let regions = (self.fast_bytes / self.sublun_bytes) as u32;
                let fixed = FixedSettings {
                    region_bytes: self.sublun_bytes,
                    regions,
                    training_s: 1,
                    ..FixedSettings::default()
                };
                TieredSpec { settings: Settings::Static(fixed), ..subluns }
            }
            WORTH => {
                // A pool's, unless told otherwise, once its journal has what is in it.
                let buffer_bytes = kura_replay::Settings::default().write_buffer_bytes.min(self.fast_bytes / 12);
                let fast_bytes = self.fast_bytes - buffer_bytes;
                TieredSpec { buffer: Buffer::Writes, buffer_bytes, fast_bytes, ..worth(subluns) }
            }
            WORTH_ALONE => worth(subluns),
            _ => return System::Cache { cache_bytes: self.fast_bytes },
        })
    }
}

/// A driver of the others' kind under kura's policy, which copies down what was written since, as a pool does.
fn worth(others: TieredSpec) -> TieredSpec {
    TieredSpec { settings: Settings::Worth(WorthSettings::default()), only_dirty: true, ..others }
}
