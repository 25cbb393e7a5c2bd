//! Filters: what changes content on its way out, alone and one after the other.

use crate::case::Case;
use crate::random::Dice;

use super::pieces::{file, request, upstream};
use super::{Generator, tree};

pub(super) struct Filters;

const SWITCHES: &[&str] = &[
    "sub_filter a b;",
    "sub_filter line 'LINE $uri';",
    "sub_filter '<p>' ''; sub_filter '</p>' '/';",
    "sub_filter_once off;",
    "sub_filter_types *;",
    "sub_filter_last_modified on;",
    "sub_filter $arg_s $arg_t;",
    "sub_filter aab x; sub_filter ab y; sub_filter_once off;",
    "ssi on;",
    "ssi_types *;",
    "ssi_last_modified on;",
    "ssi_silent_errors on;",
    "ssi_value_length 10;",
    "add_before_body /head.html;",
    "add_after_body /foot.html;",
    "addition_types *;",
    "gzip on; gzip_min_length 0;",
    "gzip_types *;",
    "gunzip on;",
    "charset utf-8;",
    "source_charset koi%%N%%; charset utf-8;",
    "override_charset on;",
    "slice 7;",
    "expires 1h;",
    "add_header X-A $uri;",
    "add_trailer X-T $status;",
    "etag off;",
    "max_ranges 0;",
    "postpone_output 0;",
    "output_buffers 1 512;",
    "chunked_transfer_encoding off;",
    "default_type text/plain;",
    "charset_types *;",
    "proxy_buffering off;",
    "proxy_force_ranges on;",
    "proxy_set_header Accept-Encoding '';",
    "error_page 404 /page.html;",
    "proxy_intercept_errors on;",
];

/// Pages with commands, whole and broken.
const COMMANDS: &[&str] = &[
    "<!--# echo var=\"uri\" -->",
    "<!--#echo var=\"arg_a\" default=\"none\" -->",
    "<!--# echo var=\"none\" -->",
    "<!--# set var=\"v\" value=\"$arg_a<b>\" --><!--# echo var=\"v\" -->",
    "<!--# echo var=\"v\" encoding=\"none\" -->",
    "<!--# echo var=\"args\" encoding=\"url\" -->",
    "<!--# include virtual=\"/foot.html\" -->",
    "<!--# include virtual=\"/foot.html?a=$arg_a\" -->",
    "<!--# include file=\"part.html\" -->",
    "<!--# include virtual=\"/none\" -->",
    "<!--# include virtual=\"/up/x\" wait=\"yes\" -->",
    "<!--# include virtual=\"/up/x\" set=\"u\" --><!--# echo var=\"u\" -->",
    "<!--# include virtual=\"/none\" stub=\"b\" -->",
    "<!--# block name=\"b\" -->block<!--# endblock -->",
    "<!--# if expr=\"$arg_a\" -->yes<!--# else -->no<!--# endif -->",
    "<!--# if expr=\"$arg_a = 1\" -->one<!--# elif expr=\"$arg_a = 2\" -->two<!--# else -->other<!--# endif -->",
    "<!--# if expr=\"$arg_a != /^1/\" -->not<!--# endif -->",
    "<!--# if expr=\"$uri = /(?P<n>pa)/\" --><!--# echo var=\"n\" --><!--# endif -->",
    "<!--# config errmsg=\"oops\" --><!--# odd -->",
    "<!--# config timefmt=\"%Y\" -->",
    "<!--# odd var=\"x\" -->",
    "<!--# echo -->",
    "<!-- no command -->",
    "<!--# echo var=\"uri\"",
    "<!-",
    "<!--# echo var=uri -->",
    "<!--# flastmod virtual=\"/x\" -->",
    "<!--# echo var=\"a\\\"b\" default='x' -->",
    "<!--# if expr=\"$arg_a = \" -->empty<!--# endif -->",
    "<!--# endif -->",
    "<!--# include virtual=\"/page.html\" -->",
];

impl Generator for Filters {
    fn area(&self) -> &'static str {
        "filters"
    }

    fn case(&self, dice: &mut Dice) -> Case {
        let text = format!(
            "charset_map koi%%N%% utf-8 {{ C1 D0B0; C2 D0B1; D7 D0B2; }}\nserver {{ listen %%PORT0%%; server_name localhost; root %%DIR%%/html;\n{}\nlocation / {{ {} }}\n\
             location /up/ {{ proxy_pass http://%%UP0%%; {} }}\nlocation /t/ {{ return 200 'text line aaab $arg_a'; default_type text/html; {} }} }}\n",
            dice.some(SWITCHES, 2).join("\n"),
            dice.some(SWITCHES, 5).join("\n"),
            dice.some(SWITCHES, 5).join("\n"),
            dice.some(SWITCHES, 2).join("\n")
        );
        let text = text.replace(
            "sub_filter $arg_s $arg_t;",
            "sub_filter \"$arg_s\" \"$arg_t\";",
        );
        let mut page = String::from("<html><p>line</p>\n");
        for _ in 0..dice.between(1, 4) {
            page.push_str(dice.word(COMMANDS));
            page.push_str(dice.word(&["\n", "", " aab ", "<p>"]));
        }
        if page.contains("/page.html") && !page.contains("if expr") {
            page = page.replace("/page.html", "/foot.html");
        }
        let page = page.replace("<!--# include virtual=\"/page.html\" -->", "");
        let mut case = Case {
            http: tree(&text),
            files: vec![
                file("html/page.html", page),
                file("html/head.html", "head line\n"),
                file("html/foot.html", "foot aab <!--# echo var=\"arg_a\" -->\n"),
                file("html/part.html", "part line\n"),
                file("html/x.txt", "aaab text line aab ab"),
                file("html/cyr.html", b"\xc1\xc2\xd7 koi8 line\n"),
                file("html/zero.html", ""),
            ],
            upstreams: vec![upstream(dice, false)],
            ..Case::default()
        };
        for _ in 0..dice.between(3, 6) {
            let target = dice.word(&[
                "/page.html",
                "/page.html?a=1",
                "/page.html?a=2&s=l",
                "/x.txt",
                "/x.txt?s=a&t=zz",
                "/up/x",
                "/up/y?a=1",
                "/t/",
                "/t/?a=%3C&s=text",
                "/cyr.html",
                "/none",
                "/zero.html",
                "/head.html",
            ]);
            case.ask(request(dice, target, 2));
        }
        case
    }
}
