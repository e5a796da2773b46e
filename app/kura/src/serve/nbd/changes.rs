//! What changed since a snapshot, as metadata contexts of an export: `kura:changed-since:SNAPSHOT`, and, for QEMU's tools,
//! `qemu:dirty-bitmap:SNAPSHOT`. In both a stretch has bit 0 set where it changed.

use kura_block::{Error, Local, Result};
use kura_controller::{Controller, VolumeInfo};
use kura_nbd::{Contexts, Extent};
use std::collections::BTreeMap;
use std::ops::Range;
use std::rc::Rc;

/// What the contexts' names begin with; the snapshot's name follows.
const PREFIXES: [&str; 2] = ["kura:changed-since:", "qemu:dirty-bitmap:"];
/// The flag of what changed.
const CHANGED: u32 = 1 << 0;

/// The contexts of an export: two for each snapshot from which it came, the newest first.
pub fn contexts(volumes: &[VolumeInfo], export: &str) -> Vec<String> {
    let ancestors = ancestors(volumes, export);
    PREFIXES.iter().flat_map(|prefix| ancestors.iter().map(move |name| format!("{prefix}{name}"))).collect()
}

/// The snapshots that `export` was once, the newest first: a volume's own; a snapshot's and clone's what it was made of,
/// where that is a snapshot, and the earlier ones of that, and so on.
fn ancestors<'a>(volumes: &'a [VolumeInfo], export: &str) -> Vec<&'a str> {
    let by_name: BTreeMap<&str, &VolumeInfo> =
        volumes.iter().map(|volume| (volume.spec.name.as_str(), volume)).collect();
    let mut names = Vec::new();
    let (mut of, mut before) = (by_name.get(export).copied(), u32::MAX);
    while let Some(volume) = of {
        let name = volume.spec.name.as_str();
        if name != export && name.contains('@') {
            names.push(name);
        }
        let made_of_it = |one: &&VolumeInfo| one.svol.as_ref().is_some_and(|svol| svol.pvol == name);
        let epoch = |one: &&VolumeInfo| one.svol.as_ref().map_or(0, |svol| svol.epoch);
        let mut own: Vec<&VolumeInfo> = volumes
            .iter()
            .filter(made_of_it)
            .filter(|one| one.spec.name.contains('@') && epoch(one) < before)
            .collect();
        own.sort_by_key(|one| std::cmp::Reverse(epoch(one)));
        names.extend(own.iter().map(|one| one.spec.name.as_str()));
        let svol = volume.svol.as_ref();
        (of, before) = (svol.and_then(|svol| by_name.get(svol.pvol.as_str()).copied()), epoch(&volume));
    }
    names
}

/// Answers for a volume of `controller`.
pub struct Changes {
    pub controller: Rc<Controller>,
    pub volume: String,
}

impl Contexts for Changes {
    fn status<'a>(&'a self, context: &'a str, offset: u64, len: u64) -> Local<'a, Result<Vec<Extent>>> {
        Box::pin(async move {
            let snapshot = PREFIXES.iter().find_map(|prefix| context.strip_prefix(prefix));
            let snapshot = snapshot.ok_or_else(|| Error::invalid(format!("{context}: no such context")))?;
            let found = self.controller.changed(snapshot, &self.volume, offset..offset + len).await?;
            let end = found.next_offset.unwrap_or(u64::MAX).min(offset + len);
            Ok(extents(&found.ranges, offset..end))
        })
    }
}

/// The stretches of `within`, which changed in `ranges` and not between them.
fn extents(ranges: &[Range<u64>], within: Range<u64>) -> Vec<Extent> {
    let (mut extents, mut at) = (Vec::new(), within.start);
    let mut put = |until: u64, flags: u32| {
        if until > at {
            extents.push(Extent { len_bytes: until - at, flags });
            at = until;
        }
    };
    for range in ranges {
        put(range.start.min(within.end), 0);
        put(range.end.min(within.end), CHANGED);
    }
    put(within.end, 0);
    extents
}

#[cfg(test)]
mod tests {
    use super::*;
    use kura_controller::{Layout, Shape, SvolStatus, VolumeSpec};

    fn volume(name: &str, of: Option<(&str, u32)>) -> VolumeInfo {
        let (name, layout) = (name.to_owned(), Layout::None);
        let svol = of.map(|(pvol, epoch)| SvolStatus { pvol: pvol.to_owned(), epoch, made_unix_s: 0, unique_bytes: 0 });
        VolumeInfo {
            family: 1,
            work: 0,
            spec: VolumeSpec { name, size_bytes: 4096, layout, thick: false, read_only: false },
            id: 1,
            controller: 0,
            shape: Shape::SINGLE,
            allocated_bytes: 0,
            raw_bytes: 0,
            open: 0,
            snapshots: 0,
            lost: false,
            doomed: false,
            svol,
        }
    }

    #[test]
    fn a_volume_came_from_its_snapshots_and_from_what_it_was_made_of() {
        let volumes = [
            volume("v", None),
            volume("v@a", Some(("v", 1))),
            volume("v@b", Some(("v", 2))),
            volume("clone", Some(("v@b", 1))),
            volume("clone@x", Some(("clone", 1))),
            volume("v@c", Some(("v", 3))),
            volume("other", None),
        ];
        let cases = [
            ("v", vec!["v@c", "v@b", "v@a"]),
            ("v@a", vec![]),
            ("v@b", vec!["v@a"]),
            ("clone", vec!["clone@x", "v@b", "v@a"]),
            ("clone@x", vec!["v@b", "v@a"]),
            ("other", vec![]),
            ("absent", vec![]),
        ];
        for (export, expected) in cases {
            assert_eq!(ancestors(&volumes, export), expected, "{export}");
        }
        assert_eq!(contexts(&volumes, "v@b"), ["kura:changed-since:v@a", "qemu:dirty-bitmap:v@a"]);
    }

    #[test]
    fn ranges_become_stretches_of_what_was_asked_for() {
        let of = |ranges: &[Range<u64>], within: Range<u64>| {
            extents(ranges, within).iter().map(|extent| (extent.len_bytes, extent.flags)).collect::<Vec<_>>()
        };
        let ranges = [0..10, 20..30, 90..200];
        assert_eq!(of(&ranges, 0..100), [(10, 1), (10, 0), (10, 1), (60, 0), (10, 1)]);
        assert_eq!(of(&ranges, 5..25), [(5, 1), (10, 0), (5, 1)]);
        assert_eq!(of(&[], 7..9), [(2, 0)]);
        assert_eq!(of(&ranges[..1], 10..20), [(10, 0)]);
    }
}
