//! Workers whose ways to the target are refused.

use super::*;
use std::net::SocketAddr;

/// Leads all who come to a service, but for the one that comes as this one.
fn refusing(refused: usize, to: SocketAddr) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for (came, here) in listener.incoming().map_while(std::result::Result::ok).enumerate() {
            if came != refused {
                let there = TcpStream::connect(to).unwrap();
                pump(&here, &there);
                pump(&there, &here);
            }
        }
    });
    address
}

fn pump(from: &TcpStream, into: &TcpStream) {
    let (mut from, mut into) = (from.try_clone().unwrap(), into.try_clone().unwrap());
    std::thread::spawn(move || {
        let _ = std::io::copy(&mut from, &mut into);
        let _ = into.shutdown(std::net::Shutdown::Both);
    });
}

#[test]
fn the_list_of_a_worker_that_never_came_is_carried_by_others() {
    for split in [Split::ByCount, Split::SizeAware, Split::Balanced] {
        let pair = Pair::new();
        let token = pair.folder.path().join("token");
        fs::write(&token, "token").unwrap();
        for index in 0..40 {
            fs::write(pair.source.join(format!("d/f{index}")), format!("{index}")).unwrap();
        }
        let root = pair.folder.path().join("module");
        let service = crate::kura::Service::listen(&root, "127.0.0.1:0", "token".to_owned(), None).unwrap();
        // The first one is the run's own.
        let address = refusing(2, service.address().unwrap());
        std::thread::spawn(move || service.run());
        let options = Options { split, target_token_file: Some(token), ..Options::default() };
        let summary = pair.run(&format!("kura://{address}/copy").parse().unwrap(), &options).unwrap();
        assert!(summary.is_complete, "{split:?}: {:?}", summary.failures);
        for index in 0..40 {
            let path = pair.copy.join(format!("d/f{index}"));
            assert_eq!(fs::read_to_string(&path).unwrap_or_default(), format!("{index}"), "{split:?}: {path:?}");
        }
    }
}
