//! What pages for people look alike in: colours, light or dark as the reader's system is, and system fonts. One file without
//! anything from elsewhere.

/// The beginning of a style sheet.
pub(crate) const STYLE: &str = "\
:root{color-scheme:light dark;--ink:#1d2430;--soft:#667085;--line:#e4e7ec;--paper:#fff;--back:#f6f7f9;--link:#0b5cad;--over:#eef4fb}
@media(prefers-color-scheme:dark){:root{--ink:#e6e8ec;--soft:#98a2b3;--line:#2b313c;--paper:#171b22;--back:#0f1217;--link:#7db8f5;--over:#1f2732}}
*{box-sizing:border-box}
body{margin:0;background:var(--back);color:var(--ink);font:16px/1.5 system-ui,-apple-system,'Segoe UI',Roboto,sans-serif}
main{max-width:60rem;margin:0 auto;padding:2rem 1rem}
a{color:var(--link);text-decoration:none}
a:hover{text-decoration:underline}
";

/// What comes before the title.
pub(crate) const HEAD: &str = "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
    <meta name=\"viewport\" content=\"width=device-width,initial-scale=1\">\n";
