//! Lua: scripts made of calls of the API, in every phase, with all that they return shown.

use crate::case::content::Content;
use crate::case::tree::parse;
use crate::case::{Act, Body, Case, File, Protocol, Request, Upstream};
use crate::random::Dice;

use super::Generator;

pub(super) struct Lua;

const MODULES: &str = "load_module /usr/lib/nginx/modules/ndk_http_module.so;\n\
    load_module /usr/lib/nginx/modules/ngx_http_lua_module.so;\n";

/// Shows values as text; errors without the place they come from; tables by their sorted keys.
const SHOW: &str = r##"
local function text(v, depth)
    if type(v) == "table" and (depth or 0) < 3 then
        local keys = {}
        for k in pairs(v) do keys[#keys + 1] = k end
        table.sort(keys, function(a, b) return tostring(a) < tostring(b) end)
        local out = {}
        for _, k in ipairs(keys) do out[#out + 1] = tostring(k) .. "=" .. text(v[k], (depth or 0) + 1) end
        return "{" .. table.concat(out, ",") .. "}"
    end
    if type(v) == "string" then
        return '"' .. v:gsub("[^ -~]", function(c) return string.format("\\%d", c:byte()) end):gsub("|", "!") .. '"'
    end
    if type(v) == "table" or type(v) == "function" or type(v) == "userdata" or type(v) == "cdata" or type(v) == "thread" then
        return v == ngx.null and "null" or type(v)
    end
    return tostring(v)
end
local log = {}
local function show(name, ok, ...)
    local out = {}
    for i = 1, select("#", ...) do out[i] = text((select(i, ...))) end
    if not ok then out = { "error " .. tostring((...)):gsub("^.-:%d+: ", ""):gsub("\n", "~"):gsub("|", "!") } end
    log[#log + 1] = name .. " => " .. table.concat(out, ", ")
end
"##;

/// Texts and other things to call functions with.
const THINGS: &[&str] = &[
    "nil",
    "true",
    "false",
    "0",
    "1",
    "-1",
    "1.5",
    "12345678901",
    "''",
    "'abc'",
    "'a b&c=d/e'",
    "'%41%zz+b%'",
    "'\\0\\255x'",
    "'héllo'",
    "{}",
    "{1,2}",
    "{a=1,b='x y',c=true}",
    "{a={1,'2'}}",
    "'1'",
    "'YWJj'",
    "'a\\nb'",
    "ngx.null",
    "print",
    "'/a?b=c#d'",
    "string.rep('x', 300)",
    "'Thu, 18 Nov 2010 11:27:35 GMT'",
    "1547178641",
];

const PATTERNS: &[&str] = &[
    "'[a-z]+'",
    "'(\\\\d)(\\\\w)?'",
    "'(?<name>a)(b)?'",
    "'^$'",
    "''",
    "'('",
    "'.'",
    "'(a)|(b)'",
    "'\\\\s+'",
    "'(?i)ABC'",
    "'é'",
];

const SUBJECTS: &[&str] = &[
    "'hello, 1234'",
    "'abc'",
    "''",
    "'a b c'",
    "'1a 2b'",
    "'héé'",
    "'ABCabc'",
    "1234",
    "nil",
];

const OPTIONS: &[&str] = &[
    "nil", "'jo'", "'i'", "'u'", "'x'", "'ad'", "'s'", "'zz'", "''", "'D'", "'J'",
];

/// Calls without arguments that vary, by what they show.
const PLAIN: &[&str] = &[
    "ngx.get_phase()",
    "ngx.req.get_method()",
    "ngx.req.http_version()",
    "ngx.req.get_uri_args()",
    "ngx.req.get_headers()['x-a']",
    "ngx.req.raw_header(true)",
    "ngx.req.get_headers(1)",
    "ngx.var.uri",
    "ngx.var.args",
    "ngx.var.nope",
    "ngx.var.arg_a",
    "ngx.var[1]",
    "ngx.var.http_x_a",
    "ngx.var.request_method",
    "ngx.is_subrequest",
    "ngx.status",
    "ngx.headers_sent",
    "ngx.header.content_type",
    "ngx.header['X-A']",
    "ngx.resp.get_headers()['x-b']",
    "ngx.req.is_internal()",
    "ngx.ctx.x",
    "ngx.null",
    "ngx.OK",
    "ngx.HTTP_GONE",
    "ngx.config.subsystem",
    "ngx.config.nginx_version > 1",
    "type(ngx.now())",
    "ngx.req.start_time() > 0",
    "#ngx.today()",
    "#ngx.utctime()",
    "ngx.worker.exiting()",
    "ngx.worker.count() > 0",
    "(pcall(ngx.req.get_body_data))",
    "ngx.var.request_body",
    "ngx.req.get_body_file()",
    "type(ngx.var.pid)",
    "type(ngx.worker.pid())",
    "ngx.get_raw_phase and 1",
    "ngx.var.scheme",
    "ngx.arg and 1",
    "ngx.var.limit_rate",
    "ngx.config.debug ~= nil",
    "ngx.DECLINED",
    "ngx.req.get_post_args()",
    "ngx.req.get_uri_args(1)",
    "ngx.HTTP_TOO_MANY_REQUESTS",
    "ngx.cookie_time(0)",
    "ngx.http_time(0)",
    "coroutine.running()",
    "type(coroutine.create(print))",
    "ngx.thread and type(ngx.thread.spawn)",
    "_G.foo",
    "#arg",
    "ngx.eof and 1",
];

/// Functions of one or two things.
const FUNCTIONS: &[&str] = &[
    "ngx.escape_uri",
    "ngx.unescape_uri",
    "ngx.encode_args",
    "ngx.decode_args",
    "ngx.encode_base64",
    "ngx.decode_base64",
    "ngx.md5",
    "ngx.md5_bin",
    "ngx.sha1_bin",
    "ngx.crc32_short",
    "ngx.crc32_long",
    "ngx.hmac_sha1",
    "ngx.quote_sql_str",
    "ngx.http_time",
    "ngx.cookie_time",
    "ngx.parse_http_time",
    "ngx.req.set_uri_args",
    "ngx.req.clear_header",
    "ngx.req.set_header",
    "tostring",
    "tonumber",
    "ngx.re.match",
    "ngx.escape_uri",
    "ngx.req.get_headers",
    "ngx.req.get_uri_args",
    "ngx.req.set_method",
    "ngx.req.set_body_data",
    "ngx.say",
    "ngx.print",
    "ngx.sleep",
    "ngx.log",
    "ngx.exit",
    "ngx.redirect",
    "ngx.req.set_uri",
    "ngx.exec",
    "ngx.location.capture",
    "ngx.timer.at",
    "ngx.on_abort",
    "ngx.flush",
    "ngx.send_headers",
    "ngx.req.read_body",
    "ngx.req.discard_body",
    "ngx.req.init_body",
    "ngx.thread.wait",
    "ngx.thread.kill",
    "coroutine.wrap",
    "require",
];

const DICT: &[&str] = &[
    "get",
    "set",
    "add",
    "replace",
    "delete",
    "incr",
    "safe_set",
    "safe_add",
    "get_stale",
    "flush_all",
    "flush_expired",
    "get_keys",
    "lpush",
    "rpush",
    "lpop",
    "rpop",
    "llen",
    "ttl",
    "expire",
    "capacity",
    "free_space",
];

const FIELDS: &[&str] = &[
    "X-A",
    "x_b",
    "Content-Type",
    "Content-Length",
    "Location",
    "Cache-Control",
    "Set-Cookie",
    "ETag",
    "Server",
    "Link",
];

impl Generator for Lua {
    fn area(&self) -> &'static str {
        "lua"
    }

    fn case(&self, dice: &mut Dice) -> Case {
        let mut files = vec![File {
            path: "html/file.txt".to_owned(),
            content: Content::new("a file\n"),
        }];
        let mut place = String::new();
        let mut block = |dice: &mut Dice, phase: &str, end: &str| {
            let path = format!("{phase}.lua");
            files.push(File {
                path: path.clone(),
                content: Content::new(script(dice, phase, end)),
            });
            place.push_str(&format!("{phase}_by_lua_file %%DIR%%/{path};\n"));
        };
        const TELL: &str =
            "ngx.ctx.log = (ngx.ctx.log or '') .. table.concat(log, '\\n') .. '\\n'\n";
        for phase in ["rewrite", "access"] {
            if dice.chance(1, 4) {
                block(dice, phase, TELL);
            }
        }
        if dice.chance(1, 5) {
            block(
                dice,
                "header_filter",
                "ngx.header['X-Log'] = ngx.escape_uri(table.concat(log, '|'))\n",
            );
        }
        if dice.chance(1, 8) {
            block(
                dice,
                "body_filter",
                "if ngx.arg[2] then ngx.arg[1] = (ngx.arg[1] or '') .. table.concat(log, '\\n') end\n",
            );
        }
        if dice.chance(5, 6) {
            block(
                dice,
                "content",
                "ngx.print(ngx.ctx.log or '', table.concat(log, '\\n'), '\\n')\n",
            );
        }
        let text = format!(
            "lua_shared_dict d%%N%% 100k;\n\
             server {{ listen %%PORT0%%; server_name localhost; root %%DIR%%/html; default_type text/plain;\n\
             set $v v; set $up %%UP0%%; set $dict d%%N%%;\n\
             location / {{\n{place}}}\n\
             location /sub {{ return 200 \"sub $request_method $args $http_x_a\"; }}\n\
             location /missing {{ return 404; }}\n\
             location /up {{ proxy_pass http://%%UP0%%; }}\n}}\n"
        );
        let mut case = Case {
            main: parse(MODULES).unwrap_or_default(),
            http: parse(&text).unwrap_or_default(),
            files,
            upstreams: vec![upstream(dice)],
            ..Case::default()
        };
        for _ in 0..dice.between(1, 3) {
            let target = dice.word(&[
                "/",
                "/file.txt",
                "/x?a=1&b=%20&a=2&c",
                "/x%20y",
                "/?a",
                "/file.txt?a=b",
            ]);
            let mut request = Request::new(dice.word(&["GET", "GET", "POST", "HEAD"]), target);
            if dice.chance(1, 2) {
                request = request.with("X-A", dice.word(&["1", "a b", ""]));
            }
            if request.method == "POST" {
                request = request
                    .with("Content-Type", "application/x-www-form-urlencoded")
                    .body(Body::Length(Content::new("a=1&b=x%20y&c")));
            }
            case.ask(request);
        }
        case
    }
}

/// What is the same in all calls of a kind is not shown.
const NOISE: &[&str] = &[
    "(function() local d = ngx.shared[ngx.var.dict]; d:set('abc', 5); return ",
    "(function() local s = ngx.socket.tcp() s:settimeout(300) local h, p = ngx.var.up:match('(.*):(.*)') local r = { s:connect(h, tonumber(p)) } ",
    "(function() local t = {}  ",
    "(function() local t = {} ",
    "(function() ",
    " end)()",
    "r[#r+1] = ",
    " return r",
];

fn script(dice: &mut Dice, phase: &str, end: &str) -> String {
    let mut text = String::from(SHOW);
    for _ in 0..dice.between(1, 5) {
        let call = call(dice, phase);
        let shown = NOISE
            .iter()
            .fold(call.clone(), |call, noise| call.replace(noise, ""));
        let shown = shown
            .replace('|', "!")
            .replace('\\', "\\\\")
            .replace('"', "\\\"")
            .replace('\n', " ");
        // The name that is shown is short: what differs is found by the number of the line.
        let name: String = shown.chars().filter(|c| c.is_ascii()).take(90).collect();
        let name = name.trim_end_matches('\\');
        text.push_str(&format!(
            "show(\"{name}\", pcall(function() return {call} end))\n"
        ));
    }
    text.push_str(end);
    text
}

fn call(dice: &mut Dice, phase: &str) -> String {
    let thing = |dice: &mut Dice| dice.word(THINGS).to_owned();
    match dice.below(12) {
        0..=2 => dice.word(PLAIN).to_owned(),
        3..=5 => {
            let arguments: Vec<String> = (0..dice.below(3)).map(|_| thing(dice)).collect();
            format!("{}({})", dice.word(FUNCTIONS), arguments.join(", "))
        }
        6 | 7 => regex(dice),
        8 => {
            let method = dice.word(DICT);
            let arguments: Vec<String> = (0..dice.below(4)).map(|_| thing(dice)).collect();
            let arguments = arguments.iter().map(|argument| format!(", {argument}"));
            let arguments: String = arguments.collect();
            format!(
                "(function() local d = ngx.shared[ngx.var.dict]; d:set('abc', 5); return d.{method}(d{arguments}) end)()"
            )
        }
        9 => {
            let (name, value) = (dice.word(FIELDS), thing(dice));
            match dice.below(4) {
                0 => format!(
                    "(function() ngx.header['{name}'] = {value}; return ngx.header['{name}'] end)()"
                ),
                1 => format!(
                    "(function() ngx.req.set_header('{name}', {value}); return ngx.req.get_headers()['{name}'], ngx.var.http_x_a end)()"
                ),
                2 => format!("(function() ngx.status = {value}; return ngx.status end)()"),
                _ => format!("(function() ngx.var.v = {value}; return ngx.var.v end)()"),
            }
        }
        10 if phase == "content" => concurrent(dice),
        11 if phase != "header_filter" && phase != "body_filter" => socket(dice),
        _ => strings(dice),
    }
}

fn regex(dice: &mut Dice) -> String {
    let (subject, pattern, options) =
        (dice.word(SUBJECTS), dice.word(PATTERNS), dice.word(OPTIONS));
    match dice.below(6) {
        0 => format!("ngx.re.match({subject}, {pattern}, {options})"),
        1 => format!("ngx.re.find({subject}, {pattern}, {options})"),
        2 => format!(
            "ngx.re.find({subject}, {pattern}, {options}, {{pos = {}}}, {})",
            dice.between(0, 4),
            dice.word(&["0", "1", "2", "nil"])
        ),
        3 => format!(
            "ngx.re.gsub({subject}, {pattern}, {}, {options})",
            dice.word(&[
                "'[$0]'",
                "'$1'",
                "'${1}x'",
                "'$$'",
                "'$'",
                "function(m) return '<' .. m[0] .. '>' end",
                "'$name'",
                "''"
            ])
        ),
        4 => format!(
            "ngx.re.sub({subject}, {pattern}, {}, {options})",
            dice.word(&[
                "'[$0]'",
                "'$2'",
                "function(m) return m[1] end",
                "'x'",
                "nil"
            ])
        ),
        _ => format!(
            "(function() local t = {{}} for m in ngx.re.gmatch({subject}, {pattern}, {options}) do t[#t+1] = m[0] end return t end)()"
        ),
    }
}

fn concurrent(dice: &mut Dice) -> String {
    let order = "local t = {} ";
    match dice.below(5) {
        0 => format!(
            "(function() {order} local a = ngx.thread.spawn(function(x) ngx.sleep(0.01) t[#t+1] = 'a' return x, 2 end, 7) t[#t+1] = 'b' return t, ngx.thread.wait(a) end)()"
        ),
        1 => format!(
            "(function() {order} local a = ngx.thread.spawn(function() error({}) end) return ngx.thread.wait(a) end)()",
            dice.word(&["'bad'", "{}", "nil", "5"])
        ),
        2 => format!(
            "(function() {order} local c = coroutine.create(function(x) local y = coroutine.yield(x + 1) ngx.sleep(0.001) return y end) return t, coroutine.resume(c, 1), coroutine.resume(c, 'y'), coroutine.status(c), coroutine.resume(c) end)()"
        ),
        3 => format!(
            "ngx.location.capture('{}', {{ args = {}, method = ngx.{}, body = {} }})",
            dice.word(&["/sub", "/up", "/missing", "/file.txt", "/sub?x=1"]),
            dice.word(&["nil", "'a=1'", "{a=1}", "{}"]),
            dice.word(&["HTTP_GET", "HTTP_POST", "HTTP_HEAD"]),
            dice.word(&["nil", "'body'"])
        ),
        _ => format!(
            "(function() {order} local a, b = ngx.location.capture_multi({{ {{'/sub', {{args = 'n=1'}}}}, {{'{}'}} }}) return a.status, a.body, b.status, #b.body end)()",
            dice.word(&["/missing", "/up", "/sub"])
        ),
    }
}

fn socket(dice: &mut Dice) -> String {
    let receive = dice.word(&[
        "s:receive()",
        "s:receive(4)",
        "s:receive('*a')",
        "s:receive('*l')",
        "s:receive(0)",
        "s:receive(100)",
        "s:receive('x')",
        "s:receiveany(100)",
        "s:receiveuntil('l')()",
        "s:receiveuntil('o', {inclusive = true})(3)",
        "s:receive(-1)",
    ]);
    let end = dice.word(&[
        "s:close()",
        "s:setkeepalive()",
        "s:setkeepalive(100, 1)",
        "s:getreusedtimes()",
        "s:receive(3)",
        "s:send({})",
    ]);
    let send = dice.word(&[
        "'GET / HTTP/1.0\\r\\n\\r\\n'",
        "{'GET / ', {'HTTP/1.0', '\\r\\n'}, '\\r\\n'}",
        "'GET / HTTP/1.0\\r\\n\\r\\n', 1",
        "nil",
    ]);
    format!(
        "(function() local s = ngx.socket.tcp() s:settimeout(300) local h, p = ngx.var.up:match('(.*):(.*)') \
         local r = {{ s:connect(h, tonumber(p)) }} r[#r+1] = text({{ s:send({send}) }}) r[#r+1] = text({{ {receive} }}) \
         r[#r+1] = text({{ {end} }}) return r end)()"
    )
}

fn strings(dice: &mut Dice) -> String {
    let (a, b) = (dice.word(THINGS), dice.word(THINGS));
    match dice.below(5) {
        0 => format!("string.format('%s %d', {a}, {b})"),
        1 => format!("table.concat({{ {a}, {b} }}, ',')"),
        2 => format!("{a} .. {b}"),
        3 => format!("tostring({a}) == {b}"),
        _ => format!("#{a}"),
    }
}

fn upstream(dice: &mut Dice) -> Upstream {
    let close = dice.chance(2, 3);
    let mut acts = vec![Act::Send(Content::new(
        "HTTP/1.1 200 OK\r\nContent-Length: 5\r\nX-A: up\r\n\r\nhello",
    ))];
    if close {
        acts.push(Act::Close);
    }
    Upstream {
        protocol: Protocol::Http,
        answers: vec![acts],
    }
}
