//! What differs between a copy and its source.

use super::*;

#[test]
fn whose_a_copy_is_that_belongs_to_its_writer_is_no_difference() {
    let pair = Pair::new();
    // The copy is not made at the same time.
    fs::File::open(&pair.source).unwrap().set_modified(SystemTime::UNIX_EPOCH).unwrap();
    assert!(pair.run(&Target::Local(pair.copy.clone()), &Options::default()).unwrap().is_complete);
    assert!(Command::new("chown").args(["-R", "1:1"]).arg(&pair.copy).status().unwrap().success());
    let source = Source::open(&pair.source).unwrap();
    let (there, _) = crate::tree::told_at(&pair.copy).unwrap();
    let compared = |has_one_owner| {
        let (differing, sums) = compare(&source, &there, has_one_owner);
        // Contents are compared, whatever else differs.
        assert!(matches!(&sums[..], [one] if one.path == b"d/file"));
        differing
    };
    assert_eq!(compared(true), []);
    assert_eq!(compared(false).len(), 3);
}
