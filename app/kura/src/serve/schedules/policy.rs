//! What a schedule asks for, by the snapshots there are and the time. Pure.

use kura_admin::SnapshotSchedule;
use std::time::{Duration, SystemTime};

/// A snapshot of the schedule's volume.
#[derive(Clone, Debug)]
pub struct Fact {
    /// Its name.
    pub name: String,
    /// When it was made: seconds since 1970.
    pub made_unix_s: u64,
    /// True while it cannot be deleted: a client has it open, or others are made of it.
    pub in_use: bool,
}

/// What is to be done.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// The snapshots to be deleted in any case, the oldest first.
    pub delete: Vec<String>,
    /// The name of the snapshot to be made.
    pub make: Option<String>,
    /// The snapshots that it takes the place of: to be deleted when it is made, or before where there is no room for it.
    pub replaced: Vec<String>,
}

/// What `schedule` asks for now, of its volume's snapshots from the oldest to the newest. Other schedules' and those made
/// by hand are left alone.
pub fn plan(schedule: &SnapshotSchedule, snapshots: &[Fact], now_unix_s: u64) -> Plan {
    let own: Vec<&Fact> = snapshots.iter().filter(|snapshot| is_of(schedule, &snapshot.name)).collect();
    // A clock that was set back must not stop a schedule for as long.
    let is_due = own.last().is_none_or(|newest| now_unix_s.abs_diff(newest.made_unix_s) >= schedule.every_s);
    let make = is_due.then(|| name(schedule, now_unix_s)).filter(|name| own.iter().all(|one| one.name != *name));
    let beyond = |count: usize| count.saturating_sub(schedule.keep as usize).min(own.len());
    let (now, then) = (beyond(own.len()), beyond(own.len() + usize::from(make.is_some())));
    let unused = |some: &[&Fact]| some.iter().filter(|one| !one.in_use).map(|one| one.name.clone()).collect();
    Plan { delete: unused(&own[..now]), replaced: unused(&own[now..then]), make }
}

/// `VOLUME@PREFIX-20261122T080000Z`
fn name(schedule: &SnapshotSchedule, now_unix_s: u64) -> String {
    let now = SystemTime::UNIX_EPOCH + Duration::from_secs(now_unix_s);
    let time = humantime::format_rfc3339_seconds(now).to_string().replace(['-', ':'], "");
    format!("{}@{}-{time}", schedule.volume, schedule.prefix)
}

fn is_of(schedule: &SnapshotSchedule, snapshot: &str) -> bool {
    let own = snapshot.strip_prefix(&schedule.volume).and_then(|rest| rest.strip_prefix('@'));
    let time = own.and_then(|own| own.strip_prefix(&schedule.prefix)).and_then(|rest| rest.strip_prefix('-'));
    time.is_some_and(|time| {
        let form = b"00000000T000000Z";
        let fits = |(letter, form): (u8, &u8)| if *form == b'0' { letter.is_ascii_digit() } else { letter == *form };
        time.len() == form.len() && time.bytes().zip(form).all(fits)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn schedule() -> SnapshotSchedule {
        SnapshotSchedule { volume: "v".to_owned(), prefix: "auto".to_owned(), every_s: 60, keep: 2 }
    }

    fn facts(made: &[u64]) -> Vec<Fact> {
        let fact = |at: &u64| Fact { name: name(&schedule(), *at), made_unix_s: *at, in_use: false };
        made.iter().map(fact).collect()
    }

    #[test]
    fn one_is_made_when_its_time_has_come() {
        let made = |times: &[u64], now| plan(&schedule(), &facts(times), now).make;
        assert_eq!(made(&[], 0).as_deref(), Some("v@auto-19700101T000000Z"));
        assert_eq!(made(&[100], 159), None);
        assert_eq!(made(&[100], 160).as_deref(), Some("v@auto-19700101T000240Z"));
        assert_eq!(made(&[1000], 990), None);
        assert!(made(&[1000], 900).is_some(), "the clock was set back");
    }

    #[test]
    fn the_oldest_beyond_the_number_go_but_for_those_in_use() {
        let names = |times: &[u64]| facts(times).into_iter().map(|fact| fact.name).collect::<Vec<_>>();
        let goes = |snapshots: &[Fact], now| {
            let Plan { delete, replaced, .. } = plan(&schedule(), snapshots, now);
            (delete, replaced)
        };
        assert_eq!(goes(&facts(&[0, 60]), 100), (names(&[]), names(&[])));
        assert_eq!(goes(&facts(&[0, 60]), 120), (names(&[]), names(&[0])), "another one takes its place");
        assert_eq!(goes(&facts(&[0]), 120), (names(&[]), names(&[])), "there is room for another one");
        assert_eq!(goes(&facts(&[0, 60, 120, 180]), 190), (names(&[0, 60]), names(&[])));
        assert_eq!(goes(&facts(&[0, 60, 120, 180]), 240), (names(&[0, 60]), names(&[120])));
        let mut snapshots = facts(&[0, 60, 120, 180]);
        snapshots[0].in_use = true;
        assert_eq!(goes(&snapshots, 190), (names(&[60]), names(&[])));
    }

    #[test]
    fn what_others_made_is_left_alone() {
        let fact = |name: &str| Fact { name: name.to_owned(), made_unix_s: 0, in_use: false };
        let others = ["v@auto", "v@auto-monday", "v@hourly-19700101T000000Z", "w@auto-19700101T000000Z"].map(fact);
        let plan = plan(&schedule(), &others, 10);
        assert!(plan.make.is_some() && plan.delete.is_empty() && plan.replaced.is_empty(), "{plan:?}");
    }
}
