//! What a run of a volume does next, by what both ends have. Pure.

use serde::{Deserialize, Serialize};
use std::time::SystemTime;

/// What the names of points begin with.
const PREFIX: &str = "replica";

/// A point at one end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Point {
    /// Its name, without the volume's.
    pub name: String,
    /// Whether it was made by a run of the pair that asks.
    pub is_own: bool,
    /// True while it cannot be deleted: a client has it open, or others are made of it.
    pub in_use: bool,
}

/// Blocks on their way from one point to another.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Transfer {
    /// The point that the target began as; none where all is sent.
    pub since: Option<String>,
    /// The point that it becomes.
    pub to: String,
}

/// What both ends have, of whatever pair: points from the oldest to the newest.
#[derive(Clone, Copy, Debug)]
pub struct Facts<'a> {
    /// Points at the source.
    pub source: &'a [Point],
    /// Points at the target.
    pub target: &'a [Point],
    /// What the target says is under way.
    pub transfer: Option<&'a Transfer>,
    /// The point that this run made.
    pub current: Option<&'a str>,
}

/// What is done next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Send what is missing of this transfer.
    Send(Transfer),
    /// Make a point at the source.
    Make,
    /// The target has the run's point.
    Done,
}

/// What is deleted at each end, the oldest first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tidy {
    /// At the source.
    pub source: Vec<String>,
    /// At the target.
    pub target: Vec<String>,
}

/// The next step of a run. What was under way is sent to its end first, where the source still can: what the target has
/// of it is not sent again.
pub fn next(facts: Facts<'_>) -> Step {
    let has = |name: &str| facts.source.iter().any(|point| point.name == name);
    let can_go_on = |transfer: &&Transfer| has(&transfer.to) && transfer.since.as_deref().is_none_or(has);
    if let Some(transfer) = facts.transfer.filter(can_go_on) {
        return Step::Send(transfer.clone());
    }
    match facts.current {
        None => Step::Make,
        Some(current) if facts.target.iter().any(|point| point.name == current) => Step::Done,
        Some(current) => {
            let since = common(facts.source, facts.target).map(str::to_owned);
            Step::Send(Transfer { since, to: current.to_owned() })
        }
    }
}

/// What may be deleted of a pair's points after a run: at the source what is older than the newest point that both have, at the target
/// all but the newest `keep`. A point at the source that is newer is on its way, by another run, and what another pair has made is what
/// that one goes on from. What is in use stays until a later run; without a common point all stays.
pub fn tidy(facts: Facts<'_>, keep: usize) -> Tidy {
    let Some(common) = common(facts.source, facts.target) else { return Tidy::default() };
    let unwanted = |older: &[&Point]| -> Vec<String> {
        let older = older.iter().filter(|point| !point.in_use && point.name != common);
        older.map(|point| point.name.clone()).collect()
    };
    let older = facts.source.iter().take_while(|point| point.name != common);
    let source: Vec<&Point> = older.filter(|point| point.is_own).collect();
    let target: Vec<&Point> = facts.target.iter().filter(|point| point.is_own).collect();
    let beyond = target.len().saturating_sub(keep);
    Tidy { source: unwanted(&source), target: unwanted(&target[..beyond]) }
}

/// The newest point that both have, whichever pair made it: what has its name is the same at both ends.
pub fn common<'a>(source: &'a [Point], target: &[Point]) -> Option<&'a str> {
    let has = |name: &str| target.iter().any(|point| point.name == name);
    source.iter().rev().map(|point| point.name.as_str()).find(|name| has(name))
}

/// The name of a new point of the pair: no other has it, at whichever end.
pub fn point_name(pair: u32, now: SystemTime) -> String {
    let time = humantime::format_rfc3339_seconds(now).to_string().replace(['-', ':'], "");
    let unique = uuid::Uuid::new_v4().as_u128() as u32;
    format!("{PREFIX}-{pair:08x}-{time}-{unique:08x}")
}

/// Whether it is the name of a point of the pair.
pub fn is_own(pair: u32, name: &str) -> bool {
    pair_of(name) == Some(pair)
}

/// The pair that a point is of, by its name; none of what is no point.
pub fn pair_of(name: &str) -> Option<u32> {
    let (pair, rest) = name.strip_prefix(PREFIX)?.strip_prefix('-')?.split_once('-')?;
    u32::from_str_radix(pair, 16).ok().filter(|_| pair.len() == 8 && rest.len() == 25)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn points(names: &[&str]) -> Vec<Point> {
        let own = |name: &&str| Point { name: (*name).to_owned(), is_own: true, in_use: false };
        names.iter().map(own).collect()
    }

    fn transfer(since: Option<&str>, to: &str) -> Transfer {
        Transfer { since: since.map(str::to_owned), to: to.to_owned() }
    }

    fn step(source: &[&str], target: &[&str], under_way: Option<Transfer>, current: Option<&str>) -> Step {
        next(Facts { source: &points(source), target: &points(target), transfer: under_way.as_ref(), current })
    }

    #[test]
    fn the_first_run_sends_everything_and_later_ones_what_changed() {
        assert_eq!(step(&[], &[], None, None), Step::Make);
        assert_eq!(step(&["a"], &[], None, Some("a")), Step::Send(transfer(None, "a")));
        assert_eq!(step(&["a"], &["a"], None, Some("a")), Step::Done);
        assert_eq!(step(&["a", "b", "c"], &["a", "b"], None, Some("c")), Step::Send(transfer(Some("b"), "c")));
    }

    #[test]
    fn what_was_cut_off_goes_on_where_it_can() {
        let cut = || Some(transfer(Some("a"), "b"));
        assert_eq!(step(&["a", "b"], &["a"], cut(), None), Step::Send(transfer(Some("a"), "b")));
        assert_eq!(step(&["a"], &["a"], cut(), None), Step::Make, "its end is gone");
        assert_eq!(step(&["a", "c"], &["a"], cut(), Some("c")), Step::Send(transfer(Some("a"), "c")));
        assert_eq!(step(&["b"], &["a"], cut(), Some("b")), Step::Send(transfer(None, "b")), "its beginning is gone");
        assert_eq!(step(&["a"], &[], Some(transfer(None, "a")), None), Step::Send(transfer(None, "a")));
    }

    #[test]
    fn the_newest_common_point_is_never_deleted() {
        let of = |source: &[&str], target: &[&str], keep| {
            let (source, target) = (points(source), points(target));
            let tidy = tidy(Facts { source: &source, target: &target, transfer: None, current: None }, keep);
            (tidy.source.join(" "), tidy.target.join(" "))
        };
        assert_eq!(of(&["a", "b", "c"], &["a", "b"], 1), ("a".into(), "a".into()), "c is on its way");
        assert_eq!(of(&["a", "b"], &["a", "b"], 2), ("a".into(), String::new()));
        assert_eq!(of(&["a", "b"], &["x"], 0), (String::new(), String::new()), "nothing in common");
        assert_eq!(of(&["a"], &["a", "x"], 1), (String::new(), String::new()));
    }

    #[test]
    fn what_is_in_use_stays() {
        let mut target = points(&["a", "b", "c"]);
        target[0].in_use = true;
        let facts = Facts { source: &points(&["c"]), target: &target, transfer: None, current: None };
        assert_eq!(tidy(facts, 1).target, ["b"]);
    }

    #[test]
    fn what_another_pair_has_made_serves_and_stays() {
        let (mut source, mut target) = (points(&["a", "b", "c"]), points(&["a", "b"]));
        for point in source.iter_mut().chain(&mut target).filter(|point| point.name != "c") {
            point.is_own = false;
        }
        let facts = Facts { source: &source, target: &target, transfer: None, current: Some("c") };
        assert_eq!(next(facts), Step::Send(transfer(Some("b"), "c")));
        let after = [target.clone(), points(&["c"])].concat();
        assert_eq!(tidy(Facts { target: &after, ..facts }, 1), Tidy::default());
    }

    #[test]
    fn a_pair_knows_its_points() {
        let name = point_name(0xab, SystemTime::UNIX_EPOCH);
        assert!(name.starts_with("replica-000000ab-19700101T000000Z-"), "{name}");
        assert!(is_own(0xab, &name) && !is_own(0xac, &name) && !is_own(0xab, "replica-000000ab-monday"));
        assert_eq!(pair_of(&name.replace("000000ab", "ab")), None);
    }
}
