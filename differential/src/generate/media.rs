//! Handlers of files that are seldom used: listings in all their formats, films and sounds, one of several files, one pixel; and
//! tables of characters, links with a signature, marks of users.

use crate::case::{Case, Content, File};
use crate::random::Dice;

use super::pieces::{file, request};
use super::{Generator, tree};

pub(super) struct Media;

const SWITCHES: &[&str] = &[
    "autoindex on;",
    "autoindex on; autoindex_format xml;",
    "autoindex on; autoindex_format json;",
    "autoindex on; autoindex_format jsonp;",
    "autoindex on; autoindex_format html; autoindex_exact_size off;",
    "autoindex on; charset utf-8;",
    "autoindex_exact_size off;",
    "mp4;",
    "mp4; mp4_max_buffer_size 10k;",
    "mp4; mp4_start_key_frame on;",
    "mp4; limit_rate 10m;",
    "flv;",
    "empty_gif;",
    "gzip_static on; gunzip on;",
    "charset utf-8; source_charset koi%%N%%;",
    "charset koi%%N%%; source_charset utf-8;",
    "charset x-own%%N%%; source_charset utf-8;",
    "charset utf-8; source_charset x-own%%N%%;",
    "charset $arg_c; source_charset utf-8;",
    "charset utf-8; source_charset $arg_c;",
    "override_charset on;",
    "charset_types *;",
    "secure_link $arg_s,$arg_e; secure_link_md5 \"$secure_link_expires$uri k\"; add_header X-L \"$secure_link\" always;",
    "secure_link $arg_s; secure_link_md5 \"$uri\"; if ($secure_link = '') { return 403; }",
    "secure_link_secret k; if ($secure_link) { rewrite ^ /$secure_link break; }",
    "userid on;",
    "userid log;",
    "userid v1; userid_name n; userid_path /p; userid_domain x.example; userid_expires 1d; userid_mark Z;",
    "userid on; userid_flags secure httponly samesite=strict; userid_p3p \"x\"; userid_service 5;",
    "add_header X-U \"$uid_got $uid_reset\" always;",
    "default_type text/plain;",
    "default_type video/mp4;",
    "index none.html;",
    "add_header X-A $uri;",
    "max_ranges 0;",
    "gzip on; gzip_types *; gzip_min_length 0;",
    "sub_filter a b; sub_filter_types *;",
    "addition_types *; add_after_body /foot.txt;",
    "expires modified +1h;",
    "directio 16;",
    "sendfile_max_chunk 8;",
    "output_buffers 1 8;",
    "limit_except GET { deny all; }",
    "error_page 404 =200 /one.gif;",
    "try_files $uri $uri/ /foot.txt;",
    "image_filter size;",
    "xslt_stylesheet x.xsl;",
    "perl_set $p x;",
];

/// What is asked for.
const TARGETS: &[&str] = &[
    "/list/",
    "/list/?callback=f",
    "/list/?callback=f%3Cx",
    "/list/one/",
    "/list/empty/",
    "/film.mp4",
    "/film.mp4?start=0.5",
    "/film.mp4?start=1&end=2",
    "/film.mp4?end=1.5",
    "/film.mp4?start=99",
    "/film.mp4?start=x",
    "/film.mp4?start=-1",
    "/film.mp4?start=0",
    "/sound.flv",
    "/sound.flv?start=5",
    "/sound.flv?start=999",
    "/sound.flv?start=-1",
    "/sound.flv?start=x",
    "/one.gif",
    "/cyr.txt",
    "/cyr.txt?c=koi%%N%%",
    "/cyr.txt?c=x-own%%N%%",
    "/koi.txt",
    "/koi.txt?c=koi%%N%%",
    "/s/5d1e/a.txt",
    "/s/x?s=1,2&e=3",
    "/broken.mp4?start=1",
    "/s/cfcd208495d565ef66e7dff9f98764da/a.txt",
    "/list",
    "/list/one/?C=N",
    "/none.mp4?start=1",
    "/zero.mp4",
    "/zero.mp4?start=1",
    "/zero.flv?start=1",
    "/",
    "/s/a?s=_e4Nc3iduzkWRm01TBBNYw,9",
];

/// Marks of users, right and wrong.
const COOKIES: &[&str] = &[
    "uid=fwAAAWWSd3NtMgYPAwMCAg==",
    "uid=x",
    "n=fwAAAWWSd3NtMgYPAwMCAg==",
    "uid=",
    "a=1; uid=fwAAAWWSd3NtMgYPAwMCAgZ=",
];

impl Generator for Media {
    fn area(&self) -> &'static str {
        "media"
    }

    fn case(&self, dice: &mut Dice) -> Case {
        let some = |dice: &mut Dice, most: usize| {
            let lines = dice.some(SWITCHES, most);
            // What is no directive here is asked for seldom.
            let lines = lines.into_iter().filter(|line| {
                !(line.starts_with("image") || line.starts_with("xslt") || line.starts_with("perl"))
            });
            lines.collect::<Vec<_>>().join("\n")
        };
        let refused = if dice.chance(1, 40) {
            dice.word(&SWITCHES[SWITCHES.len() - 3..])
        } else {
            ""
        };
        let text = format!(
            "charset_map x-own%%N%% utf-8 {{ C1 D0B0; 80 E282AC; FF C2A9; }}\ncharset_map koi%%N%% utf-8 {{ C1 D0B0; C2 D0B1; 7E E282AC; }}\n\
             server {{ listen %%PORT0%%; server_name localhost; root %%DIR%%/html; types {{ text/html html; text/plain txt; video/mp4 mp4; video/x-flv flv; image/gif gif; }} {refused}\n\
             location / {{ {} }}\nlocation /list/ {{ {} {} }}\nlocation ~ \\.(mp4|flv)$ {{ {} {} }}\nlocation /list/one/ {{ random_index on; }}\nlocation = /one.gif {{ {} }}\nlocation /s/ {{ {} }} }}\n",
            some(dice, 3),
            dice.word(&[
                "autoindex on;",
                "autoindex on; autoindex_format json;",
                "autoindex on; autoindex_format xml;",
                ""
            ]),
            some(dice, 3),
            dice.word(&["mp4;", "flv;", "", "mp4;"]),
            some(dice, 2),
            dice.word(&["empty_gif;", "empty_gif; expires max;", ""]),
            some(dice, 3),
        );
        let mut case = Case {
            http: tree(&text),
            files: files(),
            ..Case::default()
        };
        for _ in 0..dice.between(3, 7) {
            let target = dice.word(TARGETS);
            let mut asked = request(dice, target, 2);
            if dice.chance(1, 6) {
                let cookie = dice.word(COOKIES);
                asked.fields.retain(|(name, _)| name != "Cookie");
                asked = asked.with("Cookie", cookie);
            }
            case.ask(asked);
        }
        case
    }
}

fn files() -> Vec<File> {
    vec![
        file("html/index.html", "<p>index</p>\n"),
        file("html/foot.txt", "foot\n"),
        file("html/a.txt", "a\n"),
        file(
            "html/cyr.txt",
            "\u{430}\u{431}\u{20ac} \u{444} text \u{1f600}\n",
        ),
        file("html/koi.txt", b"\xc1\xc2~ \xff\x80 text\n"),
        file("html/one.gif", "no gif\n"),
        file(
            "html/sound.flv",
            "FLV\u{1}\u{5}\0\0\0\u{9}\0\0\0\0 sound sound",
        ),
        file("html/zero.flv", ""),
        file("html/zero.mp4", ""),
        file("html/broken.mp4", film(true)),
        file("html/film.mp4", film(false)),
        file("html/list/one/only.txt", "only\n"),
        file("html/list/empty/", ""),
        file("html/list/.hidden", "h\n"),
        file("html/list/a&b<c>'d'.txt", "odd\n"),
        file("html/list/q\"uote\\.txt", "odd\n"),
        file("html/list/sp ace?#%.txt", "odd\n"),
        file("html/list/\u{444}\u{444}.txt", "name\n"),
        file("html/list/tab\tname", "odd\n"),
        file("html/list/line\nname", "odd\n"),
        file("html/list/a:b", "colon\n"),
        File {
            path: "html/list/large.bin".to_owned(),
            content: Content::repeated("0123456789abcdef", 90_000),
        },
        file(
            "html/list/zz-a-name-that-is-longer-than-the-column-of-the-listing-is-wide-by-far.txt",
            "x\n",
        ),
    ]
}

fn atom(name: &[u8; 4], parts: &[Vec<u8>]) -> Vec<u8> {
    let content = parts.concat();
    let size = u32::try_from(content.len() + 8).unwrap_or(u32::MAX);
    [&size.to_be_bytes()[..], name, &content].concat()
}

fn numbers(list: &[u32]) -> Vec<u8> {
    list.iter()
        .flat_map(|number| number.to_be_bytes())
        .collect()
}

/// A film of one track: six samples of half a second, in three chunks.
fn film(is_broken: bool) -> Vec<u8> {
    const SCALE: u32 = 1000;
    let first = atom(
        b"ftyp",
        &[b"isom".to_vec(), numbers(&[512]), b"isommp41".to_vec()],
    );
    let header = |name: &[u8; 4], more: usize| {
        atom(name, &[numbers(&[0, 0, 0, SCALE, 3000]), vec![0; more]])
    };
    let track = atom(b"tkhd", &[numbers(&[7, 0, 0, 1, 0, 3000]), vec![0; 60]]);
    let description = atom(b"stsd", &[numbers(&[0, 1]), atom(b"mp4a", &[vec![0; 28]])]);
    let index = |offset: u32| {
        let sizes = if is_broken {
            numbers(&[0, 0, 60, 4, 4])
        } else {
            numbers(&[0, 0, 6, 4, 4, 4, 4, 4, 4])
        };
        let table = atom(
            b"stbl",
            &[
                description.clone(),
                atom(b"stts", &[numbers(&[0, 1, 6, 500])]),
                atom(b"stss", &[numbers(&[0, 2, 1, 4])]),
                atom(b"stsc", &[numbers(&[0, 1, 1, 2, 1])]),
                atom(b"stsz", &[sizes]),
                atom(
                    b"stco",
                    &[numbers(&[0, 3, offset, offset + 8, offset + 16])],
                ),
            ],
        );
        let media = atom(b"minf", &[atom(b"smhd", &[vec![0; 8]]), table]);
        let media = atom(
            b"mdia",
            &[header(b"mdhd", 4), atom(b"hdlr", &[vec![0; 25]]), media],
        );
        atom(
            b"moov",
            &[header(b"mvhd", 80), atom(b"trak", &[track.clone(), media])],
        )
    };
    let before = first.len() + index(0).len() + 8;
    let offset = u32::try_from(before).unwrap_or(0);
    [
        first,
        index(offset),
        atom(b"mdat", &[b"aaaabbbbccccddddeeeeffff".to_vec()]),
    ]
    .concat()
}
