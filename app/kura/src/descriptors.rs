//! How many files and sockets the server may have open, and how many clients that leaves room for.
//!
//! A process that has run out of descriptors takes no client at any door and opens no disk. So the server takes what the
//! system lets it have, and where that is little, takes only as many NBD clients as leave room for all else.

use anyhow::{Result, ensure};
use kura_nbd::Limits;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// What the other doors take at most: 1024 connections of S3, and 256 at each of REST's two.
const OTHER_DOORS: usize = 1024 + 2 * 256;
/// What is opened now and then: disks that are added, files that are written anew, connections to other servers.
const SPARE: usize = 64;
/// Clients that negotiate, for each that is served, where there is little.
const NEGOTIATING_SHARE: usize = 4;
/// NBD has two listeners.
const LISTENERS: usize = 2;
/// With fewer clients at each there is no point.
const LEAST: usize = 4;

/// Raises the limit of this process as far as the system lets it, and returns what it is now.
pub fn raise() -> usize {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    let raised = Rlimit { current: maximum, maximum };
    if current != maximum
        && let Err(error) = setrlimit(Resource::Nofile, raised)
    {
        tracing::warn!(%error, "the limit on open files stays as it is");
    }
    getrlimit(Resource::Nofile).current.map_or(usize::MAX, |limit| usize::try_from(limit).unwrap_or(usize::MAX))
}

/// What is open now; its pool's disks are, once the node runs.
pub fn open() -> usize {
    // Without /proc: some more than a pool of the default kind has.
    std::fs::read_dir("/proc/self/fd").map_or(256, Iterator::count)
}

/// The limits of the NBD door with as many clients as there is room for, of `limit` descriptors with `open` in use; an
/// error where that is next to none.
pub fn fit(wanted: Limits, limit: usize, open: usize) -> Result<Limits> {
    let free = limit.saturating_sub(open + SPARE);
    if LISTENERS * (wanted.connections + wanted.negotiations) + OTHER_DOORS <= free {
        return Ok(wanted);
    }
    // A half of it for NBD: what else there is must not be without any.
    let share = free / 2 / LISTENERS;
    let negotiations = wanted.negotiations.min(share / NEGOTIATING_SHARE).max(1);
    let connections = wanted.connections.min(share.saturating_sub(negotiations));
    ensure!(
        connections >= LEAST.min(wanted.connections),
        "this process may open only {limit} files, of which {open} are open: allow more, with LimitNOFILE= of its systemd \
         unit or `ulimit -Hn`"
    );
    let (asked, needed) = (wanted.connections, LISTENERS * (wanted.connections + wanted.negotiations));
    let needed = needed + OTHER_DOORS + open + SPARE;
    tracing::warn!(
        "this process may open only {limit} files: {connections} NBD clients are served at each address, not the {asked} \
         of nbd.connections, and S3's may run out; allow {needed}, with LimitNOFILE= of its systemd unit or `ulimit -Hn`"
    );
    Ok(Limits { connections, negotiations, ..wanted })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clients_are_as_many_as_leave_room_for_all_else() {
        let wanted = Limits { connections: 1024, negotiations: 128, ..Limits::default() };
        let fitted = |limit: usize| fit(wanted, limit, 40).map(|fitted| (fitted.connections, fitted.negotiations)).ok();
        assert_eq!(fitted(usize::MAX), Some((1024, 128)));
        assert_eq!(fitted(1 << 20), Some((1024, 128)));
        for limit in [128, 256, 1024, 2048, 4096] {
            let (connections, negotiations) = fitted(limit).expect("some room");
            let taken = LISTENERS * (connections + negotiations);
            assert!(connections >= LEAST && taken + 40 + SPARE + (limit - 40 - SPARE) / 2 <= limit || limit == 4096);
            assert!(taken <= LISTENERS * (1024 + 128));
        }
        assert_eq!(fitted(105), None);
        let few = Limits { connections: 2, ..wanted };
        assert!(fit(few, 256, 40).is_ok_and(|fitted| fitted.connections == 2));
    }
}
