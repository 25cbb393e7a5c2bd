//! The common appearance of pages for people: colours that follow the system's light or dark mode,
//! and system fonts. Such a page loads nothing from elsewhere, so that it works in networks without
//! internet access and tells no third party about its reader.

/// The common beginning of the style sheets.
pub(crate) const STYLE: &str = "\
:root{color-scheme:light dark;--ink:#1d2430;--soft:#667085;--line:#e4e7ec;--paper:#fff;--back:#f6f7f9;--link:#0b5cad;--over:#eef4fb}
@media(prefers-color-scheme:dark){:root{--ink:#e6e8ec;--soft:#98a2b3;--line:#2b313c;--paper:#171b22;--back:#0f1217;--link:#7db8f5;--over:#1f2732}}
*{box-sizing:border-box}
body{margin:0;background:var(--back);color:var(--ink);font:16px/1.5 system-ui,-apple-system,'Segoe UI',Roboto,sans-serif}
main{max-width:60rem;margin:0 auto;padding:2rem 1rem}
a{color:var(--link);text-decoration:none}
a:hover{text-decoration:underline}
";

/// Everything before the title.
pub(crate) const HEAD: &str = "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
    <meta name=\"viewport\" content=\"width=device-width,initial-scale=1\">\n";
