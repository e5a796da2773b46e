//! Lifecycle rules: what becomes of versions and uploads as they age. Pure: rules and facts in, what to do out. The
//! task that does it is in `sweep.rs`.

use crate::problem::{problem, unsupported};
use s3s::dto::{BucketLifecycleConfiguration, ExpirationStatus, LifecycleRule, Timestamp, TimestampFormat};
use s3s::{S3ErrorCode, S3Result};

/// Rules at most, as in S3.
const RULES: usize = 1000;
const DAY_MS: u64 = 24 * 60 * 60 * 1000;

/// A version, as the rules see it.
#[derive(Clone, Debug)]
pub(crate) struct Facts<'a> {
    pub key: &'a str,
    pub size_bytes: u64,
    pub modified_ms: u64,
    pub marker: bool,
    /// When a newer version came, and how many noncurrent ones are newer; none for the newest version.
    pub noncurrent: Option<(u64, u32)>,
    /// True when no other version of the key is left.
    pub only: bool,
}

/// What is to become of a version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    Stay,
    /// It is deleted as a client would delete the key.
    Expire,
    /// It is removed for good.
    Remove,
}

/// Refuses rules that make no sense, or ask for what is not supported.
pub(crate) fn check(configuration: &BucketLifecycleConfiguration) -> S3Result<()> {
    let bad = |text: &str| Err(problem(S3ErrorCode::InvalidArgument, text));
    let rules = &configuration.rules;
    if rules.is_empty() || rules.len() > RULES {
        return Err(problem(S3ErrorCode::MalformedXML, format!("there are 1 to {RULES} rules, not {}", rules.len())));
    }
    for (at, rule) in rules.iter().enumerate() {
        if rule.transitions.is_some() || rule.noncurrent_version_transitions.is_some() {
            return Err(unsupported("transition to another storage class"));
        }
        if rule.id.is_some() && rules[..at].iter().any(|other| other.id == rule.id) {
            return bad("two rules have one ID");
        }
        if !["Enabled", "Disabled"].contains(&rule.status.as_str()) {
            return Err(problem(S3ErrorCode::MalformedXML, "Status is Enabled or Disabled"));
        }
        check_filter(rule)?;
        check_actions(rule)?;
    }
    Ok(())
}

fn malformed(text: &str) -> S3Result<()> {
    Err(problem(S3ErrorCode::MalformedXML, text))
}

/// A rule says once what it is about.
fn check_filter(rule: &LifecycleRule) -> S3Result<()> {
    let Some(filter) = &rule.filter else {
        let names_keys = rule.prefix.is_some();
        return if names_keys { Ok(()) } else { malformed("a rule has a Filter, which may be empty, or a Prefix") };
    };
    if rule.prefix.is_some() {
        return malformed("a rule has a Filter or a Prefix, not both");
    }
    let conditions = [
        filter.prefix.is_some(),
        filter.tag.is_some(),
        filter.object_size_greater_than.is_some() || filter.object_size_less_than.is_some(),
        filter.and.is_some(),
    ];
    if conditions.into_iter().filter(|is_there| *is_there).count() > 1 {
        return malformed("a Filter has one condition: several stand in And");
    }
    Ok(())
}

/// A rule says what is to be done, and nothing that would not be done.
fn check_actions(rule: &LifecycleRule) -> S3Result<()> {
    let bad = |text: &str| Err(problem(S3ErrorCode::InvalidArgument, text));
    let mut days = Vec::new();
    if let Some(expiration) = &rule.expiration {
        let asked = [
            expiration.days.is_some(),
            expiration.date.is_some(),
            expiration.expired_object_delete_marker == Some(true),
        ];
        if asked.into_iter().filter(|is_there| *is_there).count() != 1 {
            return malformed("an Expiration has one of Days, Date and ExpiredObjectDeleteMarker");
        }
        // Also what is given with an offset, which would be kept without.
        if expiration.date.as_ref().is_some_and(|date| !date_ms(date).is_multiple_of(DAY_MS) || !is_utc(date)) {
            return bad("a Date is midnight GMT, as 2030-01-01T00:00:00Z");
        }
        days.extend(expiration.days);
    }
    if let Some(expiration) = &rule.noncurrent_version_expiration {
        let Some(noncurrent) = expiration.noncurrent_days else {
            return malformed("a NoncurrentVersionExpiration has NoncurrentDays");
        };
        if expiration.newer_noncurrent_versions.is_some_and(|newer| newer < 1) {
            return bad("NewerNoncurrentVersions is at least 1");
        }
        days.push(noncurrent);
    }
    if let Some(abort) = &rule.abort_incomplete_multipart_upload {
        let Some(initiation) = abort.days_after_initiation else {
            return malformed("an AbortIncompleteMultipartUpload has DaysAfterInitiation");
        };
        days.push(initiation);
    }
    if days.iter().any(|days| *days < 1) {
        return bad("a number of days is at least 1");
    }
    let has_action = rule.expiration.is_some()
        || rule.noncurrent_version_expiration.is_some()
        || rule.abort_incomplete_multipart_upload.is_some();
    if !has_action {
        return bad("a rule says what is to be done");
    }
    // Neither uploads nor delete markers have tags or a size: such a rule would do nothing.
    let of_markers =
        rule.expiration.as_ref().is_some_and(|expiration| expiration.expired_object_delete_marker == Some(true));
    if (of_markers || rule.abort_incomplete_multipart_upload.is_some()) && asks_for_more_than_keys(rule) {
        return bad("a rule about uploads or delete markers chooses by prefix, not by tags or size");
    }
    Ok(())
}

/// True when a rule chooses by tags or size.
fn asks_for_more_than_keys(rule: &LifecycleRule) -> bool {
    rule.filter.as_ref().is_some_and(|filter| {
        let and = filter.and.as_ref().is_some_and(|and| {
            and.tags.as_ref().is_some_and(|tags| !tags.is_empty())
                || and.object_size_greater_than.is_some()
                || and.object_size_less_than.is_some()
        });
        filter.tag.is_some()
            || filter.object_size_greater_than.is_some()
            || filter.object_size_less_than.is_some()
            || and
    })
}

/// True when a rule is in force.
fn is_enabled(rule: &LifecycleRule) -> bool {
    rule.status.as_str() == ExpirationStatus::ENABLED
}

/// True when some rule asks for tags.
pub(crate) fn asks_for_tags(configuration: &BucketLifecycleConfiguration) -> bool {
    let filters = configuration.rules.iter().filter(|rule| is_enabled(rule)).filter_map(|rule| rule.filter.as_ref());
    filters.into_iter().any(|filter| {
        filter.tag.is_some()
            || filter.and.as_ref().is_some_and(|and| and.tags.as_ref().is_some_and(|tags| !tags.is_empty()))
    })
}

/// True when the rule is about this object; without `tags`, whatever tags it asks for.
fn fits(rule: &LifecycleRule, key: &str, size_bytes: u64, tags: Option<&[(String, String)]>) -> bool {
    let begins = |prefix: &Option<String>| prefix.as_ref().is_none_or(|prefix| key.starts_with(prefix));
    let above = |limit: Option<i64>| limit.is_none_or(|limit| size_bytes.cast_signed() > limit);
    let below = |limit: Option<i64>| limit.is_none_or(|limit| size_bytes.cast_signed() < limit);
    let tagged = |tag: &s3s::dto::Tag| {
        let (key, value) = (tag.key.as_deref().unwrap_or_default(), tag.value.as_deref().unwrap_or_default());
        tags.is_none_or(|tags| tags.iter().any(|(own, its)| own == key && its == value))
    };
    let filter = rule.filter.as_ref().is_none_or(|filter| {
        let and = filter.and.as_ref().is_none_or(|and| {
            begins(&and.prefix)
                && above(and.object_size_greater_than)
                && below(and.object_size_less_than)
                && and.tags.iter().flatten().all(tagged)
        });
        begins(&filter.prefix)
            && above(filter.object_size_greater_than)
            && below(filter.object_size_less_than)
            && filter.tag.iter().all(tagged)
            && and
    });
    is_enabled(rule) && begins(&rule.prefix) && filter
}

/// The midnight, in UTC, that follows `days` after a time: when S3 counts a day as over.
fn over_ms(since_ms: u64, days: i32) -> u64 {
    let end = since_ms.saturating_add(u64::from(days.unsigned_abs()) * DAY_MS);
    end.div_ceil(DAY_MS) * DAY_MS
}

/// True for a date as it is written again.
fn is_utc(date: &Timestamp) -> bool {
    let mut written = Vec::new();
    // Into memory, which does not fail.
    let _ = date.format(TimestampFormat::DateTime, &mut written);
    let again =
        std::str::from_utf8(&written).ok().and_then(|text| Timestamp::parse(TimestampFormat::DateTime, text).ok());
    again.is_some_and(|again| date_ms(&again) == date_ms(date))
}

fn date_ms(date: &Timestamp) -> u64 {
    let mut seconds = Vec::new();
    // Into memory, which does not fail.
    let _ = date.format(TimestampFormat::EpochSeconds, &mut seconds);
    let seconds = std::str::from_utf8(&seconds).ok().and_then(|text| text.parse::<f64>().ok());
    // What cannot be read is never.
    seconds.map_or(u64::MAX, |seconds| (seconds.max(0.0) * 1000.0) as u64)
}

/// What becomes of a version at this time; without `tags`, of one that has all that rules ask for.
pub(crate) fn fate(
    configuration: &BucketLifecycleConfiguration,
    facts: &Facts<'_>,
    tags: Option<&[(String, String)]>,
    now_ms: u64,
) -> Fate {
    for rule in configuration.rules.iter().filter(|rule| fits(rule, facts.key, facts.size_bytes, tags)) {
        match facts.noncurrent {
            Some((since_ms, newer)) => {
                let Some(expiration) = &rule.noncurrent_version_expiration else { continue };
                let kept = expiration.newer_noncurrent_versions.unwrap_or(0).max(0).unsigned_abs();
                if newer >= kept && expiration.noncurrent_days.is_some_and(|days| now_ms >= over_ms(since_ms, days)) {
                    return Fate::Remove;
                }
            }
            None => {
                let Some(expiration) = &rule.expiration else { continue };
                let by_age = expiration.days.is_some_and(|days| now_ms >= over_ms(facts.modified_ms, days));
                if facts.marker {
                    // As S3 does: a rule of days says nothing of markers, and ends those that hide nothing all the same.
                    if facts.only && (by_age || expiration.expired_object_delete_marker == Some(true)) {
                        return Fate::Remove;
                    }
                    continue;
                }
                let by_date = expiration.date.as_ref().is_some_and(|date| now_ms >= date_ms(date));
                if by_age || by_date {
                    return Fate::Expire;
                }
            }
        }
    }
    Fate::Stay
}

/// True when an upload that began then is to be aborted.
pub(crate) fn aborts(configuration: &BucketLifecycleConfiguration, key: &str, begun_ms: u64, now_ms: u64) -> bool {
    configuration.rules.iter().filter(|rule| fits(rule, key, 0, Some(&[]))).any(|rule| {
        let days = rule.abort_incomplete_multipart_upload.as_ref().and_then(|abort| abort.days_after_initiation);
        days.is_some_and(|days| now_ms >= over_ms(begun_ms, days))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use s3s::dto::*;

    fn rule(prefix: &str) -> LifecycleRule {
        LifecycleRule {
            abort_incomplete_multipart_upload: None,
            expiration: None,
            filter: Some(LifecycleRuleFilter { prefix: Some(prefix.to_owned()), ..LifecycleRuleFilter::default() }),
            id: None,
            noncurrent_version_expiration: None,
            noncurrent_version_transitions: None,
            prefix: None,
            status: ExpirationStatus::from_static(ExpirationStatus::ENABLED),
            transitions: None,
        }
    }

    fn of(rule: LifecycleRule) -> BucketLifecycleConfiguration {
        BucketLifecycleConfiguration { rules: vec![rule] }
    }

    const NOON_MS: u64 = 100 * DAY_MS + DAY_MS / 2;

    fn facts(key: &str) -> Facts<'_> {
        Facts { key, size_bytes: 10, modified_ms: NOON_MS, marker: false, noncurrent: None, only: true }
    }

    #[test]
    fn objects_expire_at_the_midnight_after_their_days() {
        let expiration = LifecycleExpiration { days: Some(2), ..LifecycleExpiration::default() };
        let rules = of(LifecycleRule { expiration: Some(expiration), ..rule("logs/") });
        assert!(check(&rules).is_ok());
        let at = |day: u64| fate(&rules, &facts("logs/a"), Some(&[]), day * DAY_MS);
        assert_eq!((at(102), at(103)), (Fate::Stay, Fate::Expire));
        assert_eq!(fate(&rules, &facts("other"), Some(&[]), 200 * DAY_MS), Fate::Stay);
        let marker = |only, day: u64| {
            let marker = Facts { marker: true, only, ..facts("logs/a") };
            fate(&rules, &marker, Some(&[]), day * DAY_MS)
        };
        assert_eq!((marker(true, 102), marker(true, 103), marker(false, 200)), (Fate::Stay, Fate::Remove, Fate::Stay));
    }

    #[test]
    fn a_date_is_midnight_as_it_is_kept() {
        let of_date = |text: &str| {
            let date = Timestamp::parse(TimestampFormat::DateTime, text).unwrap();
            let expiration = LifecycleExpiration { date: Some(date), ..LifecycleExpiration::default() };
            check(&of(LifecycleRule { expiration: Some(expiration), ..rule("") })).is_ok()
        };
        assert!(of_date("2030-01-01T00:00:00Z") && of_date("2030-01-01T00:00:00.000Z"));
        for date in ["2030-01-01T00:00:00-12:00", "2029-12-31T12:00:00-12:00", "2030-01-01T00:00:01Z"] {
            assert!(!of_date(date), "{date}");
        }
        assert!(check(&of(LifecycleRule { filter: None, ..rule("") })).is_err(), "it is about nothing");
    }

    #[test]
    fn a_disabled_rule_does_nothing() {
        let expiration = LifecycleExpiration { days: Some(1), ..LifecycleExpiration::default() };
        let status = ExpirationStatus::from_static(ExpirationStatus::DISABLED);
        let rules = of(LifecycleRule { expiration: Some(expiration), status, ..rule("") });
        assert_eq!(fate(&rules, &facts("a"), Some(&[]), 200 * DAY_MS), Fate::Stay);
    }

    #[test]
    fn noncurrent_versions_go_but_for_the_newest_of_them() {
        let expiration = NoncurrentVersionExpiration { newer_noncurrent_versions: Some(2), noncurrent_days: Some(1) };
        let rules = of(LifecycleRule { noncurrent_version_expiration: Some(expiration), ..rule("") });
        let at = |newer| {
            let version = Facts { noncurrent: Some((NOON_MS, newer)), only: false, ..facts("a") };
            fate(&rules, &version, Some(&[]), 102 * DAY_MS)
        };
        assert_eq!((at(0), at(1), at(2)), (Fate::Stay, Fate::Stay, Fate::Remove));
        assert_eq!(fate(&rules, &facts("a"), Some(&[]), 200 * DAY_MS), Fate::Stay, "the current one is not concerned");
    }

    #[test]
    fn a_delete_marker_goes_when_nothing_is_left_below_it() {
        let expiration =
            LifecycleExpiration { expired_object_delete_marker: Some(true), ..LifecycleExpiration::default() };
        let rules = of(LifecycleRule { expiration: Some(expiration), ..rule("") });
        let marker = |only| fate(&rules, &Facts { marker: true, only, ..facts("a") }, Some(&[]), 101 * DAY_MS);
        assert_eq!((marker(true), marker(false)), (Fate::Remove, Fate::Stay));
    }

    #[test]
    fn a_tag_and_a_size_choose() {
        let tag = Tag { key: Some("k".to_owned()), value: Some("v".to_owned()) };
        let and = LifecycleRuleAndOperator {
            object_size_greater_than: Some(9),
            object_size_less_than: Some(11),
            prefix: None,
            tags: Some(vec![tag]),
        };
        let filter = LifecycleRuleFilter { and: Some(and), ..LifecycleRuleFilter::default() };
        let expiration = LifecycleExpiration { days: Some(1), ..LifecycleExpiration::default() };
        let rules = of(LifecycleRule { expiration: Some(expiration), filter: Some(filter), ..rule("") });
        assert!(asks_for_tags(&rules));
        let tags = [("k".to_owned(), "v".to_owned())];
        assert_eq!(fate(&rules, &facts("a"), Some(&tags), 200 * DAY_MS), Fate::Expire);
        assert_eq!(fate(&rules, &facts("a"), Some(&[]), 200 * DAY_MS), Fate::Stay);
        // Before they are read: whether they matter.
        assert_eq!(fate(&rules, &facts("a"), None, 200 * DAY_MS), Fate::Expire);
        assert_eq!(fate(&rules, &facts("a"), None, 101 * DAY_MS), Fate::Stay);
        assert_eq!(fate(&rules, &Facts { size_bytes: 11, ..facts("a") }, Some(&tags), 200 * DAY_MS), Fate::Stay);
    }

    #[test]
    fn uploads_are_aborted_by_age() {
        let abort = AbortIncompleteMultipartUpload { days_after_initiation: Some(1) };
        let rules = of(LifecycleRule { abort_incomplete_multipart_upload: Some(abort), ..rule("a") });
        assert!(aborts(&rules, "abc", NOON_MS, 102 * DAY_MS));
        assert!(!aborts(&rules, "abc", NOON_MS, 101 * DAY_MS));
        assert!(!aborts(&rules, "bc", NOON_MS, 200 * DAY_MS));
    }

    #[test]
    fn rules_that_make_no_sense_are_refused() {
        let days = |days| Some(LifecycleExpiration { days: Some(days), ..LifecycleExpiration::default() });
        assert!(check(&of(rule(""))).is_err(), "no action");
        assert!(check(&of(LifecycleRule { expiration: days(0), ..rule("") })).is_err());
        let named = LifecycleRule { expiration: days(1), id: Some("a".to_owned()), ..rule("") };
        let twice = BucketLifecycleConfiguration { rules: vec![named.clone(), named] };
        assert!(check(&twice).is_err());
    }

    #[test]
    fn rules_that_would_be_ignored_are_refused() {
        let expires = |expiration| LifecycleRule { expiration: Some(expiration), ..rule("") };
        let days = LifecycleExpiration { days: Some(1), ..LifecycleExpiration::default() };
        assert!(check(&of(expires(days.clone()))).is_ok());
        assert!(check(&of(expires(LifecycleExpiration::default()))).is_err(), "an expiration without a time");
        let marker = LifecycleExpiration { expired_object_delete_marker: Some(true), ..days.clone() };
        assert!(check(&of(expires(marker))).is_err(), "days and delete markers");
        let versions = |days, newer| LifecycleRule {
            noncurrent_version_expiration: Some(NoncurrentVersionExpiration {
                newer_noncurrent_versions: newer,
                noncurrent_days: days,
            }),
            ..rule("")
        };
        assert!(check(&of(versions(Some(1), Some(1)))).is_ok());
        assert!(check(&of(versions(None, Some(1)))).is_err(), "noncurrent versions without days");
        assert!(check(&of(versions(Some(1), Some(0)))).is_err());
        let uploads = |days| LifecycleRule {
            abort_incomplete_multipart_upload: Some(AbortIncompleteMultipartUpload { days_after_initiation: days }),
            ..rule("a")
        };
        assert!(check(&of(uploads(Some(1)))).is_ok());
        assert!(check(&of(uploads(None))).is_err(), "uploads without days");
        let small = LifecycleRuleFilter { object_size_less_than: Some(9), ..LifecycleRuleFilter::default() };
        assert!(check(&of(LifecycleRule { filter: Some(small.clone()), ..uploads(Some(1)) })).is_err());
        assert!(check(&of(LifecycleRule { filter: Some(small.clone()), ..expires(days.clone()) })).is_ok());
        let both = LifecycleRuleFilter { prefix: Some("a".to_owned()), ..small };
        assert!(check(&of(LifecycleRule { filter: Some(both), ..expires(days.clone()) })).is_err());
        assert!(check(&of(LifecycleRule { prefix: Some("a".to_owned()), ..expires(days) })).is_err());
    }
}
