//! Reading past the page cache gives the same bytes, whatever range is asked for.

use std::path::Path;
use std::rc::Rc;

#[test]
fn direct_reads_need_no_alignment_of_their_caller() {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let path = folder.join("direct");
    let content: Vec<u8> = (0..20_001u32).map(|n| (n % 251) as u8).collect();
    std::fs::write(&path, &content).expect("written");
    let expected = Rc::new(content);
    weir_rt::run(weir_rt::LoopOptions::default(), || async move {
        let pool = weir_rt::pool::PoolHandle::new("direct", 1, 8);
        let file = weir_rt::file::open(&path, weir_rt::file::OpenOptions::READ, &pool)
            .await
            .expect("opened");
        if file.set_direct().is_err() {
            // Not every file system can.
            return;
        }
        for (offset, len) in [
            (0, 20_001),
            (0, 1),
            (4095, 2),
            (4096, 4096),
            (19_000, 5000),
            (20_001, 10),
            (30_000, 1),
        ] {
            let read = file
                .read_at(vec![7], offset as u64, len, &pool)
                .await
                .expect("read");
            let from = offset.min(expected.len());
            let to = (offset + len).min(expected.len());
            assert_eq!(read[0], 7);
            assert!(read[1..] == expected[from..to], "{offset} {len}");
        }
    })
    .expect("the loop ran");
}
