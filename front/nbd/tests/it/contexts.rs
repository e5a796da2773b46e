//! Which metadata contexts a session has, after all that was said about them while it was negotiated.

use crate::client::*;
use crate::local::{ODD, SIZE, export, greeted, run};
use tokio::io::DuplexStream;

const ALLOCATION: &str = "base:allocation";

/// What block status tells of the first 8192 bytes, context by context, or the error it is refused with.
async fn status(client: &mut Client<DuplexStream>) -> Result<Vec<Vec<u32>>, u32> {
    client.send(&request(BLOCK_STATUS, 0, 7, 0, 8192)).await.unwrap();
    let mut told = Vec::new();
    loop {
        match client.reply(0).await.unwrap().0 {
            Reply::Chunk { last, kind: 5, payload, .. } => {
                told.push(payload.chunks(4).map(|word| u32::from_be_bytes(word.try_into().unwrap())).collect());
                if last {
                    return Ok(told);
                }
            }
            Reply::Chunk { last: true, kind: 0x8001, payload, .. } => {
                return Err(u32::from_be_bytes(payload[..4].try_into().unwrap()));
            }
            other => panic!("not a status: {other:?}"),
        }
    }
}

/// What the session has that `options` and a `GO` for `disk` make: each option with what it is answered at last.
async fn after(options: &[(u32, Vec<u8>, u32)]) -> Result<Vec<Vec<u32>>, u32> {
    let mut client = greeted(vec![export("disk", SIZE), export("tape", SIZE)]).await;
    assert_eq!(client.verdict(STRUCTURED_REPLY, b"").await.unwrap(), ACK);
    for (number, data, verdict) in options {
        assert_eq!(client.verdict(*number, data).await.unwrap(), *verdict, "option {number} {data:?}");
    }
    assert_eq!(client.verdict(GO, &info_query("disk", &[])).await.unwrap(), ACK);
    status(&mut client).await
}

fn set(export: &str, contexts: &[&str], verdict: u32) -> (u32, Vec<u8>, u32) {
    (SET_META_CONTEXT, context_query(export, contexts), verdict)
}

#[test]
fn the_last_selection_for_the_chosen_export_counts() {
    run(async {
        let allocation = |id| vec![id, 8192, 3];
        let odd = |id| vec![id, 4096, 0, 4096, 4];
        let selected = set("disk", &[ALLOCATION], ACK);
        let cases = [
            (vec![], Err(EINVAL)),
            (vec![selected.clone()], Ok(vec![allocation(1)])),
            (vec![set("disk", &[ODD, ALLOCATION], ACK)], Ok(vec![allocation(1), odd(2)])),
            // It takes the place of the one before, also where nothing comes of it.
            (vec![selected.clone(), set("disk", &[ODD], ACK)], Ok(vec![odd(1)])),
            (vec![selected.clone(), set("disk", &["x-other:thing"], ACK)], Err(EINVAL)),
            (vec![selected.clone(), set("disk", &[], ACK)], Err(EINVAL)),
            (vec![selected.clone(), set("absent", &[ALLOCATION], UNKNOWN)], Err(EINVAL)),
            (vec![selected.clone(), (SET_META_CONTEXT, b"odd".to_vec(), INVALID)], Err(EINVAL)),
            // It is for one export.
            (vec![set("tape", &[ALLOCATION], ACK)], Err(EINVAL)),
            (vec![selected.clone(), set("tape", &[ALLOCATION], ACK)], Err(EINVAL)),
            // What only asks changes nothing.
            (
                vec![
                    selected.clone(),
                    (LIST_META_CONTEXT, context_query("disk", &[ODD]), ACK),
                    (INFO, info_query("tape", &[]), ACK),
                ],
                Ok(vec![allocation(1)]),
            ),
        ];
        for (options, expected) in cases {
            assert_eq!(after(&options).await, expected, "{options:?}");
        }
    });
}

#[test]
fn more_queries_than_anybody_has_are_refused() {
    run(async {
        let mut client = greeted(vec![export("disk", SIZE)]).await;
        assert_eq!(client.verdict(STRUCTURED_REPLY, b"").await.unwrap(), ACK);
        for number in [LIST_META_CONTEXT, SET_META_CONTEXT] {
            let many = |count| context_query("disk", &vec![ALLOCATION; count]);
            assert_eq!(client.verdict(number, &many(256)).await.unwrap(), ACK);
            assert_eq!(client.verdict(number, &many(257)).await.unwrap(), TOO_BIG);
        }
        // Too many to select are none.
        assert_eq!(client.verdict(GO, &info_query("disk", &[])).await.unwrap(), ACK);
        assert_eq!(status(&mut client).await, Err(EINVAL));
    });
}
