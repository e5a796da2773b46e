use super::*;
use crate::serve::data::DataDir;
use rcgen::{CertificateParams, KeyPair};
use std::sync::LazyLock;

/// A certificate with its key, and another key, in PEM.
static IDENTITY: LazyLock<[String; 3]> = LazyLock::new(|| {
    let (key, other) = (KeyPair::generate().unwrap(), KeyPair::generate().unwrap());
    let cert = CertificateParams::new(["localhost".to_owned()]).unwrap().self_signed(&key).unwrap();
    [cert.pem(), key.serialize_pem(), other.serialize_pem()]
});

/// Loads `text` as a file named `kura.toml` in a directory where `disk0` and `disk2` are files of 1 GiB, `cert.pem` and `key.pem` belong
/// together and `other.pem` is another key, and returns what is found wrong, with that directory written as `DIR`.
fn found(text: &str) -> String {
    let directory = tempfile::tempdir().unwrap();
    let here = directory.path().to_str().unwrap();
    let [cert, key, other] = &*IDENTITY;
    for (name, content) in [("cert.pem", cert.as_str()), ("key.pem", key), ("other.pem", other)] {
        std::fs::write(directory.path().join(name), content).unwrap();
    }
    for name in ["disk0", "disk2"] {
        std::fs::File::create(directory.path().join(name)).unwrap().set_len(1 << 30).unwrap();
    }
    let file = directory.path().join("kura.toml");
    std::fs::write(&file, text.replace("DIR", here)).unwrap();
    match Config::load(Some(&file), Flags::default()) {
        Ok(_) => String::new(),
        Err(findings) => findings.to_string().replace(here, "DIR"),
    }
}

#[test]
fn what_is_wrong_is_told_with_its_place_and_its_remedy() {
    let cases = [
        ("", ""),
        ("dta = 'x'", "1:1: dta: no such key: dta; did you mean data?"),
        ("[log]\ncolour = true", "2:1: log.colour: no such key: colour; use one of: level, format"),
        ("[nbd]\n\n  lisen = 'off'", "3:3: nbd.lisen: no such key: lisen; did you mean listen?"),
        ("[log]\nformat = 'jsn'", "2:10: log.format: no such value: jsn; did you mean json?"),
        (
            "[log]\nlevel = 'loud'",
            "2:9: log.level: \"loud\" is not a level: write one of off, error, warn, info, debug, trace, \
             or as in info,kura_nbd=debug",
        ),
        ("demo = '10X'", "1:8: demo: \"10X\" is not a size: write bytes, or a number with K, M, G, T or P, as in 10G"),
        ("demo = true", "1:8: demo: invalid type: boolean `true`, expected a size: bytes, or text such as \"10G\""),
        (
            "nbd.listen = '127.0.0.1:70000'",
            "1:14: nbd.listen: \"127.0.0.1:70000\" is not an address: write IP:PORT with a port up to 65535, \
             as in 127.0.0.1:7400, or off",
        ),
        ("[nbd]\nlisten = 'localhost:0'", ""),
        ("[nbd]\nlisten = 'off'\n[admin]\nlisten = 'off'", ""),
        ("data = ''", "1:8: data: it is empty: name a directory"),
        (
            "[log]\nlevel = 'info,[x=debug'",
            "2:9: log.level: \"info,[x=debug\" is not a level: write one of off, error, warn, info, debug, trace, \
             or as in info,kura_nbd=debug",
        ),
        ("demo = 5000", "1:8: demo: a volume of 5000 bytes: give a multiple of 4096 from 4096 to 1 PiB"),
        ("demo = 0", ""),
        ("[nbdd.tls]\nkey = 'DIR/key.pem'", "1:2: nbdd: no such key: nbdd; did you mean nbd?"),
        ("[[pol.disks]]\npath = 'DIR/disk0'", "1:3: pol: no such key: pol; did you mean pool?"),
        (
            "dta = 'x'\ndemo = 3\n[log]\ncolour = 1\nformat = 'jsn'\n[[pool.disks]]\npth = 'DIR/disk0'\nclass = 'quick'",
            "1:1: dta: no such key: dta; did you mean data?\n\
             DIR/kura.toml:4:1: log.colour: no such key: colour; use one of: level, format\n\
             DIR/kura.toml:5:10: log.format: no such value: jsn; did you mean json?\n\
             DIR/kura.toml:7:1: pool.disks[0].pth: no such key: pth; did you mean path?\n\
             DIR/kura.toml:8:9: pool.disks[0].class: no such value: quick; use one of: fast, slow",
        ),
        (
            "[nbd.tls]\nkey = 'DIR/key.pem'\ncrt = 'DIR/cert.pem'",
            "3:1: nbd.tls.crt: no such key: crt; did you mean cert?",
        ),
        (
            "[nbd]\nunix = 'DIR/none/socket'",
            "2:8: nbd.unix: there is no directory DIR/none: make it, or name another path",
        ),
        (
            "data = 'DIR'\nnbd.unix = 'DIR/admin.sock'",
            "2:12: nbd.unix: DIR/admin.sock is where commands ask the server: name another path",
        ),
        (
            "[nbd]\nlisten = '127.0.0.1:7'\n[s3]\nlisten = '127.0.0.1:7'",
            "4:10: s3.listen: 127.0.0.1:7 is nbd.listen already: choose another port, or 0",
        ),
        ("[nbd]\nlisten = '127.0.0.1:0'\n[s3]\nlisten = '127.0.0.1:0'\n[admin]\nlisten = '[::1]:9'", ""),
        (
            "[[pool.disks]]\npath = 'DIR/disk1'\nclass = 'slow'\nsize = '0'",
            "4:8: pool.disks[0].size: 0 is too small for an extent of 4M: give a larger size",
        ),
        (
            "[pool]\ndisks = [{ class = 'fast', path = 'DIR/disk0' },\n{ class = 'slow', path = 'DIR/disk2' }]",
            "2:20: pool.disks[0].class: DIR/disk0 is the only fast disk, and a fast tier on one disk takes no writes: \
             give a second fast disk, or name it as tier.single_disk to have it serve reads, or say tier.policy = 'off'",
        ),
        (
            "[pool]\ndisks = [{ class = 'fast', path = 'DIR/disk0' },\n{ class = 'slow', path = 'DIR/disk2' }]\n\
             [tier]\nsingle_disk = 'DIR/disk1'",
            "5:15: tier.single_disk: DIR/disk1 is not a disk of the pool: name the path of the only fast disk",
        ),
        (
            "[pool]\ndisks = [{ class = 'fast', path = 'DIR/disk0' },\n{ class = 'slow', path = 'DIR/disk2' }]\n\
             [tier]\nsingle_disk = 'DIR/./disk0'",
            "",
        ),
        ("[tier]\npolicy = 'otf-ast'\nm = 60\nt = 'x'", "4:5: tier.t: invalid type: string \"x\", expected u64"),
        (
            "[tier]\npolicy = 'otf-ast'\nthrottle = 1",
            "3:12: tier.throttle: invalid type: integer `1`, expected a boolean",
        ),
        (
            "[tier]\nleast_bytes_per_s = 500_000_000\nmargin = -1.0\nmost_bytes_per_s = 1_000_000_000",
            "3:10: tier.margin: tier policy worth: margin = -1: it may be 0 to 1000000",
        ),
        ("[tier]\nregion = '1M'", "2:10: tier.region: 1M is less than an extent of the pool: give 4M or more"),
        ("[tier]\nregion = '1M'\n[pool]\nextent = '1M'", ""),
        ("[tier]\nregion = '4M'\nsublun = '8M'", "3:10: tier.sublun: says what region says: give one of them"),
        ("[tier]\npolicy = 'off'\nthrottle = true", ""),
        (
            "[tier]\npolicy = 'off'\nhalf_lif = 3",
            "3:12: tier.half_lif: unknown field `half_lif`, expected one of `interval_ms`, `region_bytes`, `half_life_s`, `margin`, \
             `displace`, `most_bytes_per_s`, `least_bytes_per_s`",
        ),
        ("[pool]\nextent = '64M'", ""),
        ("data = 'DIR/cert.pem'", "1:8: data: DIR/cert.pem is not a directory: name one, or a path that is free"),
        (
            "[nbd]\nlisten = '0.0.0.0:10809'",
            "2:10: nbd.listen: 0.0.0.0:10809 is reached from other machines, which requires TLS and clients' certificates: \
             add [nbd.tls] with cert, key and client_ca, or listen on 127.0.0.1",
        ),
        (
            "[nbd]\nlisten = '[::]:10809'\ntls = { cert = 'DIR/cert.pem', key = 'DIR/key.pem' }",
            "2:10: nbd.listen: [::]:10809 is reached from other machines, which requires TLS and clients' certificates: \
             add [nbd.tls] with cert, key and client_ca, or listen on 127.0.0.1",
        ),
        (
            "[nbd]\nlisten = '[::]:10809'\n[nbd.tls]\ncert = 'DIR/cert.pem'\nkey = 'DIR/key.pem'\nclient_ca = 'DIR/ca.pem'",
            "6:13: nbd.tls.client_ca: DIR/ca.pem cannot be read: No such file or directory (os error 2): \
             correct the path or the file's permissions",
        ),
        (
            "[nbd.tls]\ncert = 'DIR/key.pem'\nkey = 'DIR/key.pem'",
            "2:8: nbd.tls.cert: DIR/key.pem: there is no certificate in it",
        ),
        (
            "[nbd.tls]\ncert = 'DIR/cert.pem'\nkey = 'DIR/key.pem'\nclient_ca = 'DIR/disk0'",
            "4:13: nbd.tls.client_ca: DIR/disk0: there is no certificate in it",
        ),
        ("[nbd.tls]\ncert = 'DIR/cert.pem'\nkey = 'DIR/key.pem'\nclient_ca = 'DIR/cert.pem'", ""),
        (
            "[admin.tls]\ncert = 'DIR/cert.pem'\nkey = 'DIR/disk0'",
            "3:7: admin.tls.key: DIR/disk0: no private key in PEM can be read from it: no items found",
        ),
        (
            "[s3.tls]\ncert = 'DIR/cert.pem'\nkey = 'DIR/other.pem'",
            "3:7: s3.tls.key: DIR/cert.pem and DIR/other.pem: do they belong together?: keys may not be consistent: \
             KeyMismatch",
        ),
        ("[nbd.tls]\ncert = 'DIR/cert.pem'", "1:1: nbd.tls: missing field `key`: add it"),
        ("[s3]\nacknowledge = 'memory'", ""),
        ("[s3]\nacknowledge = 'never'", "2:15: s3.acknowledge: no such value: never; use one of: durable, memory"),
        ("[s3]\ncache = '2T'", "2:9: s3.cache: 2T is not between 0 and 1T"),
        (
            "[s3]\nlisten = '0.0.0.0:9000'",
            "2:10: s3.listen: 0.0.0.0:9000 is reached from other machines, which requires TLS: \
             add [s3.tls] with cert and key, or listen on 127.0.0.1",
        ),
        ("[s3]\nlisten = '0.0.0.0:9000'\ntls = { cert = 'DIR/cert.pem', key = 'DIR/key.pem' }", ""),
        (
            "[admin]\nlisten = '10.0.0.1:7400'",
            "2:10: admin.listen: 10.0.0.1:7400 is reached from other machines, which requires a token and TLS: \
             add admin.token = \"...\", and [admin.tls] with cert and key, or listen on 127.0.0.1",
        ),
        (
            "[admin]\nlisten = '10.0.0.1:7400'\ntoken = '0123456789abcdef'",
            "2:10: admin.listen: 10.0.0.1:7400 is reached from other machines, which requires a token and TLS: \
             add [admin.tls] with cert and key, or listen on 127.0.0.1",
        ),
        (
            "[admin]\ntoken = 'secret'",
            "2:9: admin.token: a token has at least 16 letters, digits and signs, no spaces: \
             make one with `openssl rand -hex 32`",
        ),
        ("[pool.hot]\npreset = 'mogi1996'\neager = true", ""),
        ("[pool.hot]\npreset = 'mogi96'", "2:10: pool.hot.preset: no such value: mogi96; did you mean mogi1996?"),
        ("[pool.hot]\nshare_permille = 0", "2:18: pool.hot.share_permille: 0 is not between 1 and 900"),
        ("[pool.hot]\nlimit = '1M'", "2:9: pool.hot.limit: 1M is not between 16M and 1P"),
        ("[pool.hot]\ncold_age = 0", "2:12: pool.hot.cold_age: 0 is not between 1 and 255"),
        (
            "[pool.hot]\nbatch = 17",
            "2:9: pool.hot.batch: a batch of 17 blocks does not fit a track of 16: give 1 to 16",
        ),
        ("[pool.hot]\npreset = 'mogi1996'\nbatch = 17", ""),
        ("[pool]\nextent = '3M'", "2:10: pool.extent: 3M is not a power of two: write 1M, 2M, 4M ..."),
        ("[pool]\nextent = '1K'", "2:10: pool.extent: 1K is not between 1M and 64M"),
        ("[pool]\nextent = '128M'", "2:10: pool.extent: 128M is not between 1M and 64M"),
        ("[pool]\nwarn_at_percent = []", ""),
        (
            "[pool]\nwarn_at_percent = [95, 80]",
            "2:19: pool.warn_at_percent: [95, 80]: give percentages from 10 to 100, each above the one before it, as in [80, 95]",
        ),
        (
            "[pool]\nwarn_at_percent = [101]",
            "2:19: pool.warn_at_percent: [101]: give percentages from 10 to 100, each above the one before it, as in [80, 95]",
        ),
        ("[pool]\nsharing = 'access-change'\nbalance_s = 10", ""),
        ("[pool]\nsharing = 'leese'", "2:11: pool.sharing: no such value: leese; did you mean lease?"),
        ("[pool]\nbalance_s = 3601", "2:13: pool.balance_s: 3601 is not between 0 and 3600"),
        ("[pool]\nfloating_percent = 101", "2:20: pool.floating_percent: 101 is not between 0 and 100"),
        ("[pool]\nraid_width = 2", "2:14: pool.raid_width: 2 is not between 3 and 17"),
        ("[pool]\ncontrollers = 0", "2:15: pool.controllers: 0 is not between 1 and 64"),
        ("[pool]\njournal = 16777217", "2:11: pool.journal: 16777217 is not a multiple of 4096 bytes"),
        (
            "[pool]\ndisks = [{ path = 'DIR/disk0', class = 'slow' },\n{ path = 'DIR/./disk0', class = 'slow' }]",
            "3:10: pool.disks[1].path: DIR/./disk0 is listed twice, first as disk 0: remove one",
        ),
        (
            "[pool]\ndisks = [{ class = 'quick', path = 'DIR/disk0' }]",
            "2:20: pool.disks[0].class: no such value: quick; use one of: fast, slow",
        ),
        (
            "[[pool.disks]]\npath = 'DIR/disk1'\nclass = 'slow'",
            "2:8: pool.disks[0].path: there is no DIR/disk1: correct the path, or add size = \"...\" to make a file",
        ),
        ("[[pool.disks]]\npath = 'DIR/disk1'\nclass = 'slow'\nsize = '1G'", ""),
        (
            "[[pool.disks]]\npath = 'DIR/none/disk1'\nclass = 'slow'\nsize = '1G'",
            "2:8: pool.disks[0].path: there is no directory DIR/none: make it, or name another path",
        ),
        (
            "[[pool.disks]]\npath = 'DIR'\nclass = 'slow'",
            "2:8: pool.disks[0].path: DIR is a directory: name a block device or a file",
        ),
        (
            "[pool]\ndisks = [{ model = 'nvme', class = 'fast', size = '1G' }]",
            "2:20: pool.disks[0].model: a model is not a disk to serve from: name a path, or use the file with `kura lab replay`",
        ),
        (
            "[pool]\ndisks = [{ model = 'floppy', class = 'fast' }]",
            "2:20: pool.disks[0].model: no such disk model: floppy; use one of: nvme, sata-ssd, hdd-7200, hdd-10k, \
             mogi1996, or a table of numbers: constant, ssd or rotating",
        ),
        (
            "[pool]\ndisks = [{ model = { constant = { service_ns = 5, chanels = 1 } }, class = 'fast' }]",
            "2:51: pool.disks[0].model.constant.chanels: no such key: chanels; did you mean channels?",
        ),
        (
            "[pool]\ndisks = [{ class = 'fast' }]",
            "2:20: pool.disks[0].class: a disk has a path, or for `kura lab replay` a model: add one",
        ),
        ("[pool]\ndisks = [{ model = 'hdd-7200', path = 'DIR/disk0', class = 'slow' }]", ""),
        ("data = ", "1:8: string values must be quoted, expected literal string"),
        ("data = 'a'\ndata = 'b'", "2:1: data: duplicate key: remove one"),
    ];
    let mut wrong = vec![];
    for (text, expected) in cases {
        let expected = if expected.starts_with(|c: char| c.is_ascii_digit()) {
            format!("DIR/kura.toml:{expected}")
        } else {
            expected.to_owned()
        };
        let found = found(text);
        if found != expected {
            wrong.push(format!("{text}\n  expected {expected}\n  found    {found}"));
        }
    }
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
}

#[test]
fn what_the_disks_have_no_room_for_is_told_at_the_key_that_asks_for_it() {
    let disks = "disks = [{ class = 'slow', path = 'DIR/disk0' }, { class = 'slow', path = 'DIR/disk2' }]";
    for (text, place) in [
        ("[pool]\ncontrollers = 8".to_owned(), "2:15: pool.controllers: "),
        ("[pool]\njournal = '1G'".to_owned(), "2:11: pool.journal: "),
        (format!("[pool]\n{disks}\njournal = '512M'\ncontrollers = 2"), "3:11: pool.journal: "),
        (format!("[pool]\n{disks}\njournal = '16M'\ncontrollers = 64"), "4:15: pool.controllers: "),
        (format!("[pool]\n{disks}\njournal = '64M'\ncontrollers = 4"), ""),
    ] {
        let found = found(&text);
        let is_told = found.contains(place) && found.contains("beside the journals of");
        assert!(if place.is_empty() { found.is_empty() } else { is_told }, "{text}: {found}");
    }
}

/// Its disks are its own by then: the list only says where to look.
#[test]
fn a_pool_that_is_made_need_not_be_what_is_listed() {
    let directory = tempfile::tempdir().unwrap();
    let data = directory.path().join("data");
    DataDir::open(&data).unwrap().finish().unwrap();
    let disk = |name: &str| {
        std::fs::write(directory.path().join(name), "").unwrap();
        format!("{{ path = '{}', class = '{name}' }}", directory.path().join(name).display())
    };
    let gone = format!("{{ path = '{}', class = 'slow' }}", directory.path().join("pulled/out").display());
    let list = format!("data = '{}'\npool.disks = [{}, {}, {gone}]\n", data.display(), disk("fast"), disk("slow"));
    let text = list + "tier.single_disk = '/dev/added-since'\n";
    let file = directory.path().join("kura.toml");
    std::fs::write(&file, text).unwrap();
    Config::load(Some(&file), Flags::default()).unwrap();
}

/// What is moved is an extent at least: who is told of a region is told so.
#[test]
fn regions_nobody_asked_for_are_as_large_as_extents() {
    let region_of = |extent_bytes: u64| {
        let tier = Config::default().tier.config(extent_bytes).unwrap().unwrap();
        tier.settings.region_bytes()
    };
    assert_eq!((region_of(1 << 20), region_of(64 << 20)), (4 << 20, 64 << 20));
}

#[test]
fn the_lab_wants_sizes_and_nothing_of_this_machine() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("kura.toml");
    let found = |text: &str| {
        std::fs::write(&file, text).unwrap();
        let loaded = Config::load_for(Purpose::Lab, Some(&file), Flags::default());
        loaded.err().map(|findings| findings.to_string()).unwrap_or_default()
    };
    let elsewhere = "[nbd]\nlisten = '0.0.0.0:1'\n[[pool.disks]]\npath = '/nowhere/disk'\nclass = 'slow'\nsize = '1G'";
    assert_eq!(found(elsewhere), "");
    assert_eq!(found("[[pool.disks]]\nmodel = 'mogi1996'\nclass = 'slow'"), "");
    let cases = [
        (
            "path = '/nowhere/disk'",
            "2:8: pool.disks[0].path: there is no /nowhere/disk: add size = \"...\" for its model",
        ),
        ("model = 'nvme'", "2:9: pool.disks[0].model: nvme has no size of its own: add size = \"...\""),
    ];
    for (disk, expected) in cases {
        let found = found(&format!("[[pool.disks]]\n{disk}\nclass = 'slow'"));
        assert_eq!(found, format!("{}:{expected}", file.display()));
    }
}

#[test]
fn all_that_is_wrong_is_told_at_once_in_order() {
    let found = found("[pool]\nextent = '1K'\n[nbd]\nlisten = '1.2.3.4:5'\nin_flight = 0");
    let places: Vec<&str> = found.lines().map(|line| line.split(' ').nth(1).unwrap()).collect();
    assert_eq!(places, ["pool.extent:", "nbd.listen:", "nbd.in_flight:"]);
}

#[test]
fn a_file_that_is_missing_is_named() {
    let findings = Config::load(Some(Path::new("/nowhere/kura.toml")), Flags::default()).unwrap_err();
    assert_eq!(
        findings.to_string(),
        "/nowhere/kura.toml: cannot be read: No such file or directory (os error 2): name a configuration that can, or none"
    );
}

#[test]
fn flags_come_before_the_file_and_are_checked_as_well() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("kura.toml");
    std::fs::write(&file, "data = 'here'\n[nbd]\nlisten = '127.0.0.1:1'\n[log]\nlevel = 'warn'").unwrap();
    let flags = || Flags { nbd: Some("127.0.0.1:2".parse().unwrap()), ..Flags::default() };
    let config = Config::load(Some(&file), flags()).unwrap();
    assert_eq!(config.data.get_ref(), Path::new("here"));
    assert_eq!(config.nbd.listen.get_ref().to_string(), "127.0.0.1:2");
    assert_eq!(config.log.level.directives(), "warn");

    let beyond = Flags { admin: Some("0.0.0.0:1".parse().unwrap()), ..Flags::default() };
    let findings = Config::load(Some(&file), beyond).unwrap_err();
    assert!(findings.to_string().starts_with("admin.listen: 0.0.0.0:1 is reached"), "{findings}");
}

const SAMPLE: &str = include_str!("../../../../docs/kura.toml");

#[test]
fn the_sample_says_the_defaults() {
    assert_eq!(toml::from_str::<Config>(SAMPLE).unwrap(), Config::default());
}

#[test]
fn what_the_sample_only_mentions_is_valid_as_well() {
    let is_value = |line: &str| line.contains(" = ") || line.starts_with('[') || line == "]";
    let mentioned = |line: &str| line.strip_prefix("# ").filter(|rest| is_value(rest.trim_start())).map(str::to_owned);
    let whole: Vec<String> = SAMPLE.lines().map(|line| mentioned(line).unwrap_or_else(|| line.to_owned())).collect();
    let config: Config = toml::from_str(&whole.join("\n")).unwrap();
    assert!(config.nbd.tls.is_some_and(|tls| tls.client_ca.is_some()));
    assert!(config.admin.tls.is_some() && config.admin.token.is_some());
    assert_eq!(config.pool.disks.len(), 6);
    assert!(config.nbd.unix.is_some() && config.pool.controllers.is_some());
}
