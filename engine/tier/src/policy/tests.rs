//! What holds of every policy, whatever I/O it sees; and the paper's worked example.

use super::world::{World, reads};
use super::*;
use crate::{Costs, Facts, Heat, Move, Placed, Reason, SlowLoad, Space, Tier, VolumeFacts, Wants};
use proptest::prelude::*;

/// The paper counts subLUNs from 1.
fn region(sublun: u32) -> u32 {
    sublun - 1
}

/// Quiet subLUNs everywhere, so that the busy ones draw `share` of 60,000 requests: 1000 a second.
fn minute(busy: &[(u32, u32)]) -> Vec<Heat> {
    let drawn: u32 = busy.iter().map(|(_, ios)| ios).sum();
    let quiet: Vec<u32> = (1..=300).filter(|sublun| busy.iter().all(|(own, _)| own != sublun)).collect();
    let each = (60_000 - drawn) / quiet.len() as u32;
    let quiet = quiet.into_iter().map(|sublun| (region(sublun), each));
    reads(busy.iter().map(|(sublun, ios)| (region(*sublun), *ios)).chain(quiet))
}

/// Intervals, the I/O of each, and what is on the fast tier after it.
type Step<'a> = (u32, &'a [(u32, u32)], &'a [u32]);

/// Figs. 1 to 4: subLUNs 65 to 68 are candidates three times in a row and go up; 69 joins and goes up at once; later 67
/// to 69 are quiet for ten minutes and go down, then the others.
#[test]
fn the_papers_worked_example() {
    let wide: &[(u32, u32)] = &[(65, 9000), (66, 14_000), (67, 12_000), (68, 8000)];
    let narrow: &[(u32, u32)] = &[(65, 15_000), (66, 25_000)];
    let elsewhere: &[(u32, u32)] = &[(200, 45_000)];
    let joined: &[(u32, u32)] = &[(65, 9000), (66, 10_000), (67, 10_000), (68, 8000), (69, 8000)];
    let steps: &[Step<'_>] = &[
        (1, wide, &[]),                          // T
        (1, &[(66, 20_000), (67, 20_000)], &[]), // T+60: not the same subLUNs, but some of them
        (1, wide, &[65, 66, 67, 68]),            // T+120: the third in a row (Fig. 2)
        (1, joined, &[65, 66, 67, 68, 69]),      // T+180: 69 has joined
        (9, narrow, &[65, 66, 67, 68, 69]),      // 67 to 69 are outside, not yet long enough
        (1, narrow, &[65, 66]),                  // the tenth time: a part of the group goes down (Fig. 3)
        (2, elsewhere, &[65, 66]),
        (1, elsewhere, &[65, 66, 200]),
        (6, elsewhere, &[65, 66, 200]),
        (1, elsewhere, &[200]), // all of the group is down (Fig. 4)
    ];
    let mut world = World::paper();
    let mut policy = OtfAst::new(OtfAstSettings::default());
    for (number, (intervals, busy, fast)) in steps.iter().enumerate() {
        for _ in 0..*intervals {
            world.interval(&mut policy, &minute(busy));
        }
        let ids: Vec<u32> = world.fast().iter().map(|region| region + 1).collect();
        assert_eq!(&ids, fast, "step {number}");
    }
}

#[test]
fn each_move_says_why() {
    let mut world = World::paper();
    let mut policy = OtfAst::new(OtfAstSettings::default());
    let mut decided: Vec<Move> = Vec::new();
    for busy in [&[(100, 40_000)][..], &[(100, 40_000)], &[(100, 40_000)], &[(100, 30_000), (101, 10_000)]] {
        decided.extend(world.interval(&mut policy, &minute(busy)).moves);
    }
    let told: Vec<String> =
        decided.iter().map(|decided| format!("{:?}: {}", decided.regions, decided.reason)).collect();
    assert_eq!(
        told,
        [
            "99..100: its group was a candidate 3 intervals in a row, now with 67 % of the volume's I/O",
            "100..101: it joined a group on the fast tier that drew 67 % of the volume's I/O"
        ]
    );
    assert_eq!(
        policy.standing(7, 99).verdict,
        "on the fast tier; down after 10 intervals outside the candidates: 0 so far"
    );
}

/// Below i nothing is decided; an m that the top n do not pass gives no candidates.
#[test]
fn quiet_and_scattered_io_moves_nothing() {
    let quiet = reads([(3, 2999)]);
    let scattered = reads((0..300).map(|region| (region, 200)));
    for heat in [quiet, scattered] {
        let mut world = World::paper();
        let mut policy = OtfAst::new(OtfAstSettings::default());
        for _ in 0..20 {
            assert!(world.interval(&mut policy, &heat).moves.is_empty());
        }
    }
}

#[test]
fn static_tiering_chooses_once() {
    let mut world = World::paper();
    let mut policy = Fixed::new(FixedSettings { training_s: 120, regions: 2, ..FixedSettings::default() });
    assert!(world.interval(&mut policy, &reads([(1, 5), (2, 4)])).moves.is_empty());
    world.interval(&mut policy, &reads([(2, 4), (9, 3)]));
    assert_eq!(world.fast(), [1, 2]);
    assert!(world.interval(&mut policy, &reads([(100, 1000)])).moves.is_empty());
}

/// A server that nobody asks for anything has not trained, however long that lasts.
#[test]
fn static_tiering_trains_from_the_first_io_on() {
    let mut world = World::paper();
    let mut policy = Fixed::new(FixedSettings { training_s: 120, regions: 2, ..FixedSettings::default() });
    for _ in 0..10 {
        world.interval(&mut policy, &[]);
        assert!(policy.rests());
    }
    world.interval(&mut policy, &reads([(5, 1)]));
    assert!(world.placed.is_empty() && !policy.rests());
    assert!(policy.standing(7, 5).verdict.starts_with("training, 60 of 120 s"));
    world.interval(&mut policy, &reads([(1, 50), (2, 40)]));
    assert_eq!(world.fast(), [1, 2]);
}

/// What another policy left on the fast tier, or an earlier start, makes room for what is chosen; but what a floor keeps.
#[test]
fn static_tiering_sends_down_what_it_did_not_choose() {
    for (floor_regions, stay) in [(0, 0), (20, 20)] {
        let wants = Wants { floor_regions, ..Wants::default() };
        let mut world = World { wants, placed: (100..124).map(|region| (region, false)).collect(), ..World::paper() };
        let mut policy = Fixed::new(FixedSettings { training_s: 120, regions: 2, ..FixedSettings::default() });
        world.interval(&mut policy, &reads([(1, 5), (2, 4)]));
        assert_eq!(world.placed.len(), 24, "while it trains");
        let decision = world.interval(&mut policy, &reads([(1, 5)]));
        assert!(decision.moves.iter().all(|decided| decided.reason == Reason::NotChosen), "{:?}", decision.moves);
        world.interval(&mut policy, &[]);
        assert_eq!(world.fast()[..2], [1, 2]);
        assert_eq!(world.placed.len(), 2 + stay);
    }
}

fn small() -> WorthSettings {
    WorthSettings { region_bytes: 1 << 20, ..WorthSettings::default() }
}

fn worth_world(room: u32) -> World {
    World { regions: 100_000, room, region_bytes: 1 << 20, interval_ns: 2_000_000_000, ..World::paper() }
}

/// A hot neighbourhood comes up whole, its quiet regions too, before they are asked for.
#[test]
fn neighbours_of_what_is_hot_come_up() {
    let mut world = worth_world(10_000);
    let mut policy = Worth::new(small());
    for step in 0..20 {
        world.interval(&mut policy, &reads([(512 + step * 37 % 256, 300)]));
    }
    assert_eq!(world.fast(), (512..768).collect::<Vec<_>>());
}

/// What is hot stays while a scan passes by that is larger than the fast tier.
#[test]
fn a_scan_does_not_displace_what_is_hot() {
    let mut world = worth_world(600);
    let mut policy = Worth::new(small());
    let hot = || (0..32_u32).map(|region| (region * 300, 40));
    for _ in 0..100 {
        world.interval(&mut policy, &reads(hot()));
    }
    for step in 0..1500 {
        let scanned = (0..20).map(|at| (20_000 + step * 20 + at, 16));
        world.interval(&mut policy, &reads(hot().chain(scanned)));
        let fast = world.fast();
        assert!(hot().all(|(region, _)| fast.binary_search(&region).is_ok()), "step {step}");
    }
}

/// What is used hard once an hour stays while a few requests each go to much else between; and what is used as hard elsewhere, and not
/// for a moment only, takes its place within minutes all the same.
#[test]
fn a_burst_of_each_hour_stays_and_a_shift_does_not_wait_for_it() {
    let mut world = worth_world(64);
    let mut policy = Worth::new(small());
    let burst = || reads((0..64_u32).map(|region| (region * 300, 100)));
    for _ in 0..90 {
        world.interval(&mut policy, &burst());
    }
    for step in 0..1800_u32 {
        world.interval(&mut policy, &reads((0..3).map(|at| (30_000 + (step * 3 + at) % 100 * 300, 1))));
    }
    let stay = (0..64).filter(|region| world.placed.contains_key(&(region * 300))).count();
    assert!(stay > 60, "{stay} of 64 stay for the next burst");
    for _ in 0..300 {
        world.interval(&mut policy, &reads((0..64_u32).map(|region| (50_000 + region * 300, 100))));
    }
    let came = (0..64).filter(|region| world.placed.contains_key(&(50_000 + region * 300))).count();
    assert_eq!(came, 64, "a shift of the load is followed within ten minutes");
}

/// What is pinned came by no word of a level, and earns none.
#[test]
fn a_pinned_volume_earns_no_word_its_credit() {
    static FIRST: std::ops::Range<u32> = 0..32;
    let mut world = World { wants: Wants { pin: Some(Tier::Fast), ..Wants::default() }, ..worth_world(32) };
    world.mapped = Some(std::slice::from_ref(&FIRST));
    let mut policy = Worth::new(small());
    for _ in 0..50 {
        world.interval(&mut policy, &reads((0..32).map(|region| (region, 500))));
    }
    assert_eq!(world.placed.len(), 32);
    (world.wants, world.mapped) = (Wants::default(), None);
    world.interval(&mut policy, &reads([(5000, 1)]));
    let expected = policy.standing(7, 5000).expected_ios.unwrap();
    assert!(expected <= 1.0, "one request says {expected}");
}

/// After a start nothing is known of what is up: what comes first does not displace it before what is hot was asked for again.
#[test]
fn a_start_keeps_what_was_up() {
    for (intervals, stays) in [(20, true), (400, false)] {
        let mut world = World { placed: (0..64).map(|region| (region * 300, false)).collect(), ..worth_world(64) };
        let mut policy = Worth::new(small());
        for _ in 0..intervals {
            world.interval(&mut policy, &reads((50_000..50_064).map(|region| (region, 50))));
        }
        assert_eq!((0..64).all(|region| world.placed.contains_key(&(region * 300))), stays, "{intervals}");
        assert_eq!(policy.standing(7, 300).verdict.contains("up at the start"), stays);
    }
    // Time in which nobody asks for anything says nothing.
    let mut world = World { placed: (0..64).map(|region| (region * 300, false)).collect(), ..worth_world(64) };
    let mut policy = Worth::new(small());
    world.interval(&mut policy, &[]);
    world.now_ns += 86_400_000_000_000;
    assert!(world.interval(&mut policy, &reads([(50_000, 5000)])).moves.is_empty());
}

/// On an idle slow tier a single request is worth a copy, on a busy one it is not.
#[test]
fn a_copy_costs_what_it_delays() {
    for (utilisation, up) in [(0.0, true), (0.9, false)] {
        let mut world = worth_world(100);
        world.slow.utilisation = utilisation;
        let mut policy = Worth::new(small());
        world.interval(&mut policy, &reads([(5, 1)]));
        assert_eq!(world.placed.contains_key(&5), up, "{utilisation}");
    }
}

/// One of each policy, with regions of a GiB.
fn each_policy() -> [Box<dyn Policy>; 3] {
    let worth = WorthSettings { region_bytes: 1 << 30, most_bytes_per_s: 1 << 40, ..WorthSettings::default() };
    [
        Box::new(Worth::new(worth)),
        Box::new(OtfAst::new(OtfAstSettings::default())),
        Box::new(Fixed::new(FixedSettings { training_s: 60, ..FixedSettings::default() })),
    ]
}

/// A thin volume that is pinned takes space for what it holds.
#[test]
fn a_pin_takes_no_space_for_holes() {
    for mut policy in each_policy() {
        let wants = Wants { pin: Some(Tier::Fast), ..Wants::default() };
        let mut world = World { wants, mapped: Some(&[90..94, 200..202]), ..World::paper() };
        world.interval(&mut *policy, &reads([(5, 10_000)]));
        assert_eq!(world.fast(), [90, 91, 92, 93, 200, 201], "{}", policy.name());
    }
}

/// A pinned volume comes up as fast as moves go, so that a word against it comes soon enough.
#[test]
fn a_pin_brings_up_what_an_interval_allows() {
    let wants = Wants { pin: Some(Tier::Fast), ..Wants::default() };
    let mut world = World { wants, ..worth_world(100_000) };
    let mut policy = Worth::new(small());
    for interval in 1..4 {
        world.interval(&mut policy, &[]);
        assert_eq!(world.placed.len(), interval * 512, "256 MiB a second");
    }
}

/// What a policy decides of a volume that fills the fast tier, with a floor, and a pinned one of six regions beside it.
fn beside_a_pinned_volume(policy: &mut dyn Policy, floor_regions: u32) -> Vec<Move> {
    let placed: Vec<_> = (0..24).map(|region| Placed { region, dirty: false }).collect();
    let heat: Vec<_> = (4..24).map(|region| Heat { region, reads: 500, writes: 0 }).collect();
    let (wants, pinned) =
        (Wants { floor_regions, ..Wants::default() }, Wants { pin: Some(Tier::Fast), ..Wants::default() });
    let volume =
        |volume, mapped, heat, placed, wants| VolumeFacts { volume, regions: 300, mapped, heat, placed, wants };
    let mut decide = |at: u64, volumes: &[VolumeFacts<'_>]| {
        let facts = Facts {
            now_ns: at * 60_000_000_000,
            interval_ns: 60_000_000_000,
            region_bytes: 1 << 30,
            volumes,
            fast: Space { total: 24, free: 0 },
            waiting: 0,
            slow: SlowLoad::default(),
            costs: Costs { up_ms: 50.0, down_ms: 50.0, slow_ms: 8.0, fast_ms: 0.1 },
        };
        policy.decide(&facts).moves
    };
    let busy = volume(7, std::slice::from_ref(&(0..300)), &heat, &placed, wants);
    decide(1, &[busy]);
    decide(2, &[busy, volume(8, &[10..13, 50..53], &[], &[], pinned)])
}

/// On a full tier what is wanted least leaves for a pinned volume, but what a floor keeps; and no more than that.
#[test]
fn a_pin_displaces_what_is_wanted_least() {
    for mut policy in each_policy() {
        let moves = beside_a_pinned_volume(&mut *policy, 0);
        let to = |tier: Tier| moves.iter().filter(move |decided| decided.to == tier);
        let down: Vec<_> = to(Tier::Slow).flat_map(|decided| decided.regions.clone()).collect();
        let up: Vec<_> = to(Tier::Fast).flat_map(|decided| decided.regions.clone()).collect();
        assert_eq!(up, [10, 11, 12, 50, 51, 52], "{}", policy.name());
        assert_eq!(down.len(), 6, "{}: {moves:?}", policy.name());
        assert!(to(Tier::Slow).all(|decided| decided.volume == 7 && decided.reason == Reason::ForPinned));
        if policy.name() != "otf-ast" {
            assert!((0..4).all(|idle| down.contains(&idle)), "{}: {down:?}", policy.name());
        }
        assert!(moves.iter().rposition(|decided| decided.to == Tier::Slow) < Some(moves.len() - 1));
    }
    for mut policy in each_policy() {
        let moves = beside_a_pinned_volume(&mut *policy, 22);
        let down: u32 =
            moves.iter().filter(|decided| decided.to == Tier::Slow).map(|decided| decided.regions.len() as u32).sum();
        assert_eq!(down, 2, "{}: {moves:?}", policy.name());
    }
}

/// Where nothing is allocated there is nothing to bring up, however much it is asked for.
#[test]
fn holes_displace_nothing() {
    static FIRST: std::ops::Range<u32> = 0..600;
    let mut world = World { mapped: Some(std::slice::from_ref(&FIRST)), ..worth_world(32) };
    let mut policy = Worth::new(small());
    for _ in 0..20 {
        world.interval(&mut policy, &reads((0..32).map(|region| (region, 4))));
    }
    let before = world.fast();
    assert_eq!(before.len(), 32);
    for _ in 0..20 {
        let decision = world.interval(&mut policy, &reads((5000..5032).map(|region| (region, 5000))));
        assert!(decision.moves.is_empty(), "{:?}", decision.moves);
    }
    // Nor do they cost what is allocated its credit.
    for _ in 0..3 {
        world.interval(&mut policy, &reads((300..316).map(|region| (region, 5000))));
    }
    assert!((300..316).all(|region| world.placed.contains_key(&region)), "{:?}", world.fast());
}

/// A concentration moves on, and what a volume may have up moves with it.
#[test]
fn at_a_ceiling_the_better_regions_of_a_volume_are_up() {
    let wants = Wants { ceiling_regions: Some(16), ..Wants::default() };
    let mut world = World { wants, ..worth_world(1000) };
    let mut policy = Worth::new(small());
    for start in [0, 4096, 8192] {
        for _ in 0..400 {
            world.interval(&mut policy, &reads((start..start + 16).map(|region| (region, 100))));
        }
        assert_eq!(world.fast(), (start..start + 16).collect::<Vec<_>>());
    }
}

#[test]
fn a_ceiling_holds_of_a_quiet_volume() {
    for mut policy in each_policy() {
        let mut world = World::paper();
        world.placed = (0..20).map(|region| (region, false)).collect();
        world.interval(&mut *policy, &reads((0..20).map(|region| (region, 2))));
        world.wants.ceiling_regions = Some(5);
        world.interval(&mut *policy, &[]);
        assert_eq!(world.placed.len(), 5, "{}", policy.name());
    }
}

#[test]
fn parameters_out_of_range_are_refused_in_one_line() {
    let cases = [
        (r#"{"policy":"otf-ast","t":0}"#, "tier policy otf-ast: interval_s (t) = 0: it may be 1 to 86400"),
        (r#"{"policy":"otf-ast","m":100.0}"#, "tier policy otf-ast: share_percent (m) = 100: it may be 0 to 99"),
        (
            r#"{"policy":"otf-ast","sublun_bytes":1000}"#,
            "tier policy otf-ast: region_bytes = 1000: it may be a power of two",
        ),
        (r#"{"policy":"static","regions":0}"#, "tier policy static: regions = 0: it may be 1 to 4294967295"),
        (r#"{"policy":"worth","displace":0.5}"#, "tier policy worth: displace = 0.5: it may be 1 to 1000000"),
    ];
    for (text, wrong) in cases {
        let settings: Settings = serde_json::from_str(text).unwrap();
        let error = settings.policy().err().unwrap().to_string();
        assert!(error.starts_with(wrong) && !error.contains('\n'), "{error}");
    }
    assert!(serde_json::from_str::<Settings>(r#"{"policy":"otf-ast","x":1}"#).is_err());
    for name in Settings::NAMES {
        assert_eq!(Settings::named(name).unwrap().policy().unwrap().name(), name);
    }
    assert!(Settings::named("magic").unwrap_err().to_string().contains("worth, otf-ast, static"));
}

fn any_heat() -> impl Strategy<Value = Vec<Heat>> {
    proptest::collection::btree_map(0..64_u32, (0..4000_u32, 0..4000_u32), 0..40)
        .prop_map(|counts| counts.into_iter().map(|(region, (reads, writes))| Heat { region, reads, writes }).collect())
}

fn any_wants() -> impl Strategy<Value = Wants> {
    let pin = prop_oneof![4 => Just(None), 1 => Just(Some(Tier::Fast)), 1 => Just(Some(Tier::Slow))];
    (pin, 0..6_u32, proptest::option::of(0..12_u32)).prop_map(|(pin, floor_regions, ceiling)| Wants {
        pin,
        floor_regions: floor_regions.min(ceiling.unwrap_or(u32::MAX)),
        ceiling_regions: ceiling,
    })
}

proptest! {
    /// Whatever comes: no more on the fast tier than it has room for, no move of what is there already or of what does
    /// not exist, ceilings and pins kept, floors never undercut, and the same facts decide the same.
    #[test]
    fn invariants_of_every_policy(
        intervals in proptest::collection::vec(any_heat(), 1..40),
        wants in any_wants(),
        room in 1..20_u32,
        utilisation in 0.0..1.0_f64,
    ) {
        let fixed = FixedSettings { training_s: 120, ..FixedSettings::default() };
        let otf = OtfAstSettings { streak: 2, timeout: 3, throttle: true, ..OtfAstSettings::default() };
        let make: [&dyn Fn() -> Box<dyn Policy>; 3] = [
            &|| Box::new(OtfAst::new(otf.clone())),
            &|| Box::new(Fixed::new(fixed.clone())),
            &|| Box::new(Worth::new(WorthSettings { region_bytes: 1 << 30, ..WorthSettings::default() })),
        ];
        for make in make {
            let (mut policy, mut twin) = (make(), make());
            let mut world = World { regions: 64, room, wants, ..World::paper() };
            world.slow.utilisation = utilisation;
            for heat in &intervals {
                let before = world.placed.clone();
                let mut same = World { placed: before.clone(), ..world };
                let decision = world.interval(policy.as_mut(), heat);
                prop_assert_eq!(&same.interval(twin.as_mut(), heat), &decision);
                let mut now = before.clone();
                for decided in &decision.moves {
                    prop_assert!(!decided.regions.is_empty() && decided.regions.end <= 64 && decided.volume == 7);
                    for region in decided.regions.clone() {
                        let moved = match decided.to {
                            Tier::Fast => now.insert(region, false).is_none(),
                            Tier::Slow => now.remove(&region).is_some(),
                        };
                        prop_assert!(moved, "{}: {decided:?} is there already", policy.name());
                        prop_assert!(now.len() as u32 <= room);
                    }
                }
                let ceiling = wants.ceiling_regions.filter(|_| wants.pin.is_none());
                prop_assert!(ceiling.is_none_or(|ceiling| now.len() as u32 <= ceiling), "{}", policy.name());
                let floor = if wants.pin.is_none() { wants.floor_regions.min(before.len() as u32) } else { 0 };
                prop_assert!(now.len() as u32 >= floor, "{}", policy.name());
                if wants.pin == Some(Tier::Slow) {
                    prop_assert!(now.is_empty());
                }
            }
        }
    }
}

/// Idle time in which a policy rests need not be told: what it decides afterwards is the same.
#[test]
fn who_rests_misses_nothing() {
    let settings = [
        Settings::Worth(WorthSettings { region_bytes: 1 << 30, interval_ms: 60_000, ..WorthSettings::default() }),
        Settings::OtfAst(OtfAstSettings { throttle: true, ..OtfAstSettings::default() }),
        Settings::Static(FixedSettings { training_s: 180, regions: 3, ..FixedSettings::default() }),
    ];
    for settings in settings {
        let after = |told: bool| {
            let (mut world, mut policy) = (World::paper(), settings.policy().unwrap());
            world.slow.utilisation = 0.9;
            (0..4).for_each(|_| drop(world.interval(&mut *policy, &minute(&[(65, 20_000), (66, 20_000)]))));
            world.slow = crate::SlowLoad::default();
            assert!(settings.policy().unwrap().rests(), "at the beginning");
            let restless = (0..100).take_while(|_| {
                world.interval(&mut *policy, &[]);
                !policy.rests()
            });
            assert!(restless.count() < 10, "{settings:?}");
            for _ in 0..30 {
                if told {
                    assert!(world.interval(&mut *policy, &[]).moves.is_empty(), "{settings:?}");
                    assert!(policy.rests());
                } else {
                    world.now_ns += world.interval_ns;
                }
            }
            let busy = (0..12).flat_map(|at| world.interval(&mut *policy, &minute(&[(67 + at / 4, 41_000)])).moves);
            (busy.collect::<Vec<_>>(), world.fast())
        };
        let (moves, fast) = after(true);
        assert!(!fast.is_empty() && (!moves.is_empty() || matches!(settings, Settings::Static(_))), "{settings:?}");
        assert_eq!(after(false).1, fast, "{settings:?}");
    }
}
