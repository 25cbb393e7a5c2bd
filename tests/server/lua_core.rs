//! Lua: what lua-resty-core is to nginx's module: regular expressions, texts, arguments of functions, dictionaries.

use super::lua::says;
use weir_tests::is_oracle;

/// Each line of code, and what it gives: results or the message of its error, each followed by a semicolon.
fn gives(cases: &[(&str, &str)]) {
    let mut code = String::from(
        "local function show(ok, ...)
            for n = 1, select('#', ...) do
                local value = select(n, ...)
                if not ok then value = tostring(value):gsub('^[^ ]*:%d+: ', '') end
                if type(value) == 'table' then
                    local parts = {}
                    for key, one in pairs(value) do
                        if type(one) == 'table' then one = '{' .. table.concat(one, ',') .. '}' end
                        parts[#parts + 1] = tostring(key) .. '=' .. tostring(one)
                    end
                    table.sort(parts)
                    value = '{' .. table.concat(parts, ',') .. '}'
                end
                ngx.print(tostring(value), ';')
            end
            ngx.print('\\n')
        end\n",
    );
    let mut expected = String::new();
    for (line, result) in cases {
        code.push_str(&format!("show(pcall(function() return {line} end))\n"));
        expected.push_str(&format!("{result}\n"));
    }
    says(&code, &expected);
}

#[test]
fn regular_expressions_find_as_nginxs_do() {
    gives(&[
        (
            r#"ngx.re.match("1234, 5", "(\\d+), (\\d)")"#,
            "{0=1234, 5,1=1234,2=5};",
        ),
        (r#"ngx.re.match(nil, "i")"#, "{0=i};"),
        (r#"ngx.re.match("ab", "(a)|(b)")"#, "{0=a,1=a,2=false};"),
        // Of several groups with a name the last counts, also when it took no part.
        (
            r#"ngx.re.match("a", "(?J)(?<x>a)|(?<x>b)")"#,
            "{0=a,1=a,2=false,x=false};",
        ),
        (
            r#"ngx.re.match("ab", "(?<x>a)(?<x>b)|(?<x>c)", "D")"#,
            "{0=ab,1=a,2=b,3=false,x={a,b}};",
        ),
        // A table that is used again keeps what it had.
        (
            r#"ngx.re.match("ab", "b", "", nil, { [1] = "old", y = 1 })"#,
            "{0=b,1=old,y=1};",
        ),
        (r#"ngx.re.find("abcd", "b(c)", "", nil, 1)"#, "3;3;"),
        (
            r#"ngx.re.find("abcd", "b(c)", "", nil, 2)"#,
            "nil;nil;nth out of bound;",
        ),
        (r#"ngx.re.find("abcd", "b(x)?", "", nil, 1)"#, "nil;nil;"),
        (r#"ngx.re.find("abcd", "e")"#, "nil;"),
        (r#"ngx.re.find("abab", "b", "", { pos = 3 })"#, "4;4;"),
        // The other algorithm finds the longest, and no groups.
        (r#"ngx.re.match("abcd", "a|ab|(?<x>abc)", "d")"#, "{0=abc};"),
        (
            r#"ngx.re.find("abcd", "(b)", "d", nil, 1)"#,
            "nil;nil;nth out of bound;",
        ),
        (
            r#"ngx.re.gsub("abcab", "a|ab", "[$0]", "dj")"#,
            "[ab]c[ab];2;",
        ),
        // As JavaScript has them: an empty class, and `\u`.
        (r#"ngx.re.match("a", "[]", "J")"#, "nil;"),
        (r#"ngx.re.match("a", "[^]", "J")"#, "{0=a};"),
        (
            r#"ngx.re.match("\228\189\160x", ".", "u")"#,
            "{0=\u{4f60}};",
        ),
        (
            r#"ngx.re.match("\228\189\160x", ".", "U")"#,
            "{0=\u{4f60}};",
        ),
        (
            r#"ngx.re.match("a", "a", "q")"#,
            r#"unknown flag "q" (flags "q");"#,
        ),
        (
            r#"ngx.re.match("a", 3)"#,
            "attempt to get length of local 'regex' (a number value);",
        ),
        (
            r#"ngx.re.match("a", nil, "o")"#,
            "attempt to concatenate local 'regex' (a nil value);",
        ),
        (
            r#"ngx.re.match("a", "a", 3)"#,
            "attempt to get length of local 'opts' (a number value);",
        ),
        (
            r#"ngx.re.match("a", "a", "", true)"#,
            "attempt to index local 'ctx' (a boolean value);",
        ),
    ]);
}

#[test]
fn regular_expressions_replace_as_nginxs_do() {
    gives(&[
        (r#"ngx.re.sub("hello", "l", "$$$0${0}x")"#, "he$llxlo;1;"),
        (r#"ngx.re.gsub("hello", "", "-")"#, "-h-e-l-l-o-;6;"),
        (
            r#"ngx.re.gsub("hello", "(l)|(h)", "[$1|$2]")"#,
            "[|h]e[l|][l|]o;3;",
        ),
        (
            r#"ngx.re.gsub("ab", "b", function(m) return nil end)"#,
            "anil;1;",
        ),
        (r#"ngx.re.gsub(12, "2", true)"#, "1true;1;"),
        (
            r#"ngx.re.sub("a", "a", "$name")"#,
            "nil;nil;failed to compile the replacement template;",
        ),
        (
            r#"ngx.re.sub("a", "a", "${1")"#,
            "nil;nil;failed to compile the replacement template;",
        ),
        ("ngx.re.gmatch('aa', 'a')()", "{0=a};"),
        (r#"require("ngx.re").split("a,b,,", ",")"#, "{1=a,2=b};"),
        (
            r#"require("ngx.re").split("a,b,,", ",", nil, nil, 2)"#,
            "{1=a,2=b,,};",
        ),
        (
            r#"require("ngx.re").split("a1b2c", "(\\d)")"#,
            "{1=a,2=1,3=b,4=2,5=c};",
        ),
        (r#"require("ngx.re").split("abc", "")"#, "{1=a,2=b,3=c};"),
        (
            r#"require("ngx.re").split("a,b", ",", nil, { pos = 2 })"#,
            "{1=,2=b};",
        ),
        (r#"require("ngx.re").opt("x")"#, "unrecognized option name;"),
    ]);
}

#[test]
fn patterns_that_are_none_say_why_in_pcres_words() {
    let (open, place) = match is_oracle() {
        // Debian's module is built with the first PCRE.
        true => ("pcre_compile() failed: missing )", -10),
        false => ("pcre2_compile() failed: missing closing parenthesis", -3),
    };
    gives(&[
        (
            r#"ngx.re.match("a", "(abc")"#,
            &format!(r#"nil;{open} in "(abc";"#),
        ),
        (
            r#"ngx.re.find("a", "(abc")"#,
            &format!(r#"nil;nil;{open} in "(abc";"#),
        ),
        (
            r#"ngx.re.sub("a", "(abc", "")"#,
            &format!(r#"nil;nil;{open} in "(abc";"#),
        ),
        (
            r#"ngx.re.match("\228\189", "a", "u")"#,
            &format!("nil;pcre_exec() failed: {place};"),
        ),
        (
            r#"ngx.re.gsub("\228\189", "a", "b", "u")"#,
            &format!("nil;nil;pcre_exec() failed: {place};"),
        ),
    ]);
}

#[test]
fn any_value_is_taken_as_text() {
    gives(&[
        (
            "ngx.escape_uri(setmetatable({}, { __tostring = function() return 'a b' end }))",
            "a%20b;",
        ),
        ("ngx.unescape_uri(false)", ";"),
        ("ngx.unescape_uri(7LL)", "7LL;"),
        ("ngx.md5(ngx.null) == ngx.md5('userdata: NULL')", "true;"),
        ("ngx.crc32_short()", "0;"),
        ("ngx.encode_base64(true, true)", "dHJ1ZQ;"),
        (
            "ngx.encode_base64('a', 1)",
            "bad no_padding: boolean expected, got number;",
        ),
        ("ngx.decode_base64(1)", "string argument only;"),
        ("ngx.decode_base64('YWJj=garbage')", "abc;"),
        ("ngx.decode_base64('YWJ')", "ab;"),
        ("ngx.decode_base64('Y')", "nil;"),
        (
            "require('ngx.base64').decode_base64url('42'):byte()",
            "227;",
        ),
        (
            "require('ngx.base64').encode_base64url({})",
            "nil;must provide a string;",
        ),
        ("ngx.http_time('1')", "number argument only;"),
        ("ngx.cookie_time(-1)", "Thu, 01-Jan-70 00:00:00 GMT;"),
        ("ngx.parse_http_time(1)", "string argument only;"),
    ]);
}

#[test]
fn arguments_that_cannot_be_are_named_in_luas_words() {
    gives(&[
        ("ngx.encode_args()", "expecting 1 argument but seen 0;"),
        (
            "ngx.encode_args({ 'a' })",
            "attempt to use a non-string key in the \"args\" option table;",
        ),
        ("ngx.encode_args({ a = { true, 'x', false } })", "a&a=x;"),
        (
            "ngx.decode_args('a', nil)",
            "bad argument #2 to '?' (number expected, got nil);",
        ),
        ("ngx.decode_args('a&b', -1)", "{a=true,b=true};"),
        ("ngx.hmac_sha1('k')", "expecting 2 arguments, but got 1;"),
        ("ngx.quote_sql_str()", "expecting one argument;"),
        (
            "(ngx.log(9, 'x'))",
            "bad argument #1 to 'log' (bad log level: 9);",
        ),
        (
            "ngx.log(ngx.ERR, {})",
            "bad argument #1 to '?' (expected table to have __tostring metamethod);",
        ),
        (
            "ngx.log(ngx.ERR, print)",
            "bad argument #1 to '?' (string, number, boolean, or nil expected, got function);",
        ),
        (
            "ngx.print({ a = 1 })",
            "bad argument #1 to '?' (non-array table found);",
        ),
        (
            "ngx.print('x', { print })",
            "bad argument #2 to '?' (bad data type function found);",
        ),
        ("ngx.print({ [3] = 'x' })", "nilnilx1;"),
        (
            "ngx.sleep()",
            "attempt to pass 0 arguments, but accepted 1;",
        ),
        ("ngx.sleep(-1)", "invalid sleep duration \"-1000\";"),
        (
            "ngx.req.set_uri()",
            "expecting 1, 2 or 3 arguments but seen 0;",
        ),
        (
            "ngx.req.set_uri('/x', nil)",
            "bad argument #2 to '?' (boolean expected, got nil);",
        ),
        ("ngx.req.set_uri_args()", "expecting 1 argument but seen 0;"),
        (
            "ngx.req.set_uri_args(true)",
            "bad argument #1 to '?' (string, number, or table expected, but got boolean);",
        ),
        (
            "ngx.req.set_header()",
            "bad 'name' argument: string expected, got nil;",
        ),
        ("ngx.req.read_body(1)", "expecting 0 arguments but seen 1;"),
        (
            "ngx.req.get_post_args()",
            "no request body found; maybe you should turn on lua_need_request_body?;",
        ),
        ("ngx.req.set_body_data('x')", "request body not read yet;"),
        (
            "require('ngx.req').add_header('A', {})",
            "bad 'value' argument: non-empty table expected;",
        ),
        (
            "require('ngx.resp').add_header('A')",
            "invalid header value;",
        ),
        ("ngx.arg[1]", "API disabled in the current context;"),
        (
            "require('ngx.errlog').raw_log('x')",
            "bad argument #1 to 'raw_log' (must be a number);",
        ),
    ]);
}

#[test]
fn dictionaries_take_any_key_and_refuse_bad_numbers() {
    gives(&[
        ("ngx.shared.shared:set(false, 1)", "true;nil;false;"),
        ("ngx.shared.shared:get('false')", "1;"),
        ("ngx.shared.shared:set('a', 1, 1e300)", "true;nil;false;"),
        (
            "ngx.shared.shared:set('a', 1, -1)",
            "bad \"exptime\" argument;",
        ),
        (
            "ngx.shared.shared:set('a', 1, true)",
            "attempt to compare boolean with number;",
        ),
        ("ngx.shared.shared:set('a', {})", "nil;bad value type;"),
        (
            "ngx.shared.shared:incr('a', 'x')",
            "cannot convert 'nil' to 'double';",
        ),
        ("ngx.shared.shared:incr('a', '2')", "3;"),
        (
            "ngx.shared.shared:incr('a', 1, {})",
            "bad init arg: number expected, got table;",
        ),
        (
            "ngx.shared.shared:incr('a', 1, nil, 5)",
            "must provide \"init\" when providing \"init_ttl\";",
        ),
        (
            "ngx.shared.shared:lpush('l')",
            "expecting 3 arguments, but only seen 2;",
        ),
        (
            "ngx.shared.shared:llen(true)",
            "bad argument #2 to '?' (string expected, got boolean);",
        ),
        ("ngx.shared.shared:expire('a')", "bad \"exptime\" argument;"),
        (
            "ngx.shared.shared:get_keys(nil)",
            "bad argument #2 to '?' (number expected, got nil);",
        ),
        ("#ngx.shared.shared:get_keys(-1)", "2;"),
    ]);
}

#[test]
fn dictionaries_count_their_memory_as_nginx_does() {
    // 100 KB are 24 pages of 4 KB, two of which the dictionary keeps for itself.
    let code = "local d = ngx.shared.small
        ngx.say(d:capacity(), ' ', d:free_space())
        local function set(key, n, how) return d[how or 'set'](d, key, string.rep('x', n)) end
        local said = {}
        for n = 1, 30 do
            local ok, err, forced = set('k' .. n, 4000)
            said[#said + 1] = tostring(ok) .. tostring(forced) .. d:free_space()
        end
        ngx.say(table.concat(said, ' '))
        ngx.say(#d:get_keys(), ' ', d:get_keys(2)[1], ' ', tostring(d:get('k8')))
        ngx.say(set('large', 3 * 4096), ' ', #d:get_keys(), ' ', d:free_space())
        ngx.say(set('huge', 100000), ' ', #d:get_keys(), ' ', d:free_space())
        local n = 0
        while set('s' .. n, 10, 'safe_set') do n = n + 1 end
        ngx.say(n, ' ', set('s0', 11, 'safe_set'))
        d:flush_all()
        ngx.say(d:flush_expired(3), ' ', d:flush_expired(), ' ', d:free_space())
        n = 0
        while d:lpush('list', 'item' .. n) do n = n + 1 end
        ngx.say(n, ' ', d:llen('list'), ' ', d:free_space())
        while d:rpop('list') do end
        ngx.say(d:free_space())
        d:set('stale', 1, 0.001) ngx.sleep(0.01) ngx.update_time()
        ngx.say(d:ttl('stale') < 0, ' ', tostring(d:get('other')), ' ', tostring(d:ttl('stale')))";
    let Some(server) = super::lua::lua(&format!(
        "lua_shared_dict small 100k;
        server {{ listen 127.0.0.1:%%PORT%%; location / {{ content_by_lua_block {{ {code} }} }} }}"
    )) else {
        return;
    };
    let forced = "truetrue0 ".repeat(8);
    let free: String = (0..22)
        .rev()
        .map(|pages| format!("truefalse{} ", pages * 4096))
        .collect();
    let expected = format!(
        "102400 90112\n{free}{}\n22 k9 nil\ntrue 19 0\nfalse 0 90112\n735 truenilfalse\n3 729 90112\n2794 2794 0\n90112\n\
         true nil nil\n",
        forced.trim_end()
    );
    assert_eq!(server.start().get("/").expect(200).text(), expected);
}

#[test]
fn what_scripts_say_of_the_content() {
    let Some(server) = super::lua::lua(
        "server { listen 127.0.0.1:%%PORT%%;
            location = /discard { content_by_lua_block {
                ngx.req.discard_body() ngx.req.read_body() ngx.say(tostring(ngx.req.get_body_data()))
            } }
            location = /file { content_by_lua_block {
                ngx.req.read_body()
                local name = os.tmpname()
                local file = io.open(name, 'w') file:write('from a file') file:close()
                ngx.req.set_body_file(name, true)
                ngx.say(ngx.var.http_content_length, ' ', tostring(pcall(ngx.req.set_body_file, '/nowhere/at/all')))
            } }
            location = /post { content_by_lua_block {
                ngx.req.read_body()
                local args, err = ngx.req.get_post_args(2)
                ngx.say(args.a, ' ', tostring(args.b), ' ', tostring(err))
            } }
            location = /args { content_by_lua_block {
                local reused = { old = 1 }
                local args, err = ngx.req.get_uri_args(2, reused)
                ngx.say(args == reused, ' ', tostring(args.old), ' ', args.a, ' ', tostring(args.b), ' ', tostring(err))
                local args, err = ngx.decode_args('=x&a=1&b=2', 2)
                ngx.say(args.a, ' ', tostring(args.b), ' ', tostring(err))
            } }
            location = /socket { client_body_buffer_size 1k; content_by_lua_block {
                local socket = ngx.req.socket()
                ngx.req.init_body(100)
                ngx.req.append_body(socket:receive(5))
                ngx.req.finish_body()
                ngx.say(ngx.var.http_content_length, ' ', ngx.req.get_body_data())
            } }
            location = /fields { default_type text/own; content_by_lua_block {
                ngx.header.a = 'b'
                ngx.print(ngx.resp.get_headers().connection, ' ')
                ngx.say(ngx.header.content_type, ' ', select(2, ngx.resp.get_headers(2)))
            } }
            location = /old { rewrite_by_lua_block { ngx.ctx.seen = 1 ngx.req.set_uri('/new', true) } }
            location = /new { content_by_lua_block { ngx.say(tostring(ngx.ctx.seen)) } }
            location = /length { content_by_lua_block { ngx.header.content_length = 'no number' ngx.say('x') } }
            location = /error { content_by_lua_block { ngx.exit(ngx.ERROR) } }
            location = /declined { content_by_lua_block { ngx.exit(ngx.DECLINED) } }
            location = /head {
                header_filter_by_lua_block { ngx.ctx.seen = true ngx.header.seen = 'yes' }
                content_by_lua_block { ngx.send_headers() ngx.say(tostring(ngx.ctx.seen)) }
            }
        }",
    ) else {
        return;
    };
    let server = server.start();
    let post = |target: &str, content: &str| {
        let request = format!(
            "POST {target} HTTP/1.1\r\nHost: a\r\nConnection: close\r\nContent-Length: {}\r\n\r\n{content}",
            content.len()
        );
        server.raw(request).expect(200).text()
    };
    assert_eq!(post("/discard", "hello"), "nil\n");
    let text = post("/file", "hello");
    assert!(text.starts_with("11 false"), "{text}");
    assert_eq!(post("/post", "a=1&&b=2"), "1 nil truncated\n");
    let text = server.get("/args?=x&a=1&b=2").expect(200).text();
    assert_eq!(text, "true nil 1 2 truncated\n1 nil truncated\n");
    assert_eq!(post("/socket", "hello"), "5 hello\n");
    let text = server.get("/fields").expect(200).text();
    assert_eq!(text, "keep-alive text/own truncated\n");
    assert_eq!(server.get("/old").expect(200).text(), "nil\n");
    server.get("/length").expect(500);
    // Neither is a status: the connection is closed.
    // Debian's module keeps it open for `DECLINED`, without an answer.
    let targets = match is_oracle() {
        true => &["/error"][..],
        false => &["/error", "/declined"],
    };
    for target in targets {
        let request = format!("GET {target} HTTP/1.1\r\nHost: a\r\n\r\n");
        assert!(server.raw_or_closed(request).is_none(), "{target}");
    }
    assert_eq!(server.get("/head").expect(200).text(), "true\n");
}

#[test]
fn modules_of_resty_core_can_be_required() {
    gives(&[
        ("require('resty.core.base').FFI_DECLINED", "-5;"),
        ("#require('resty.core.base').new_tab(4, 0)", "0;"),
        ("require('resty.core.base').get_request() ~= nil", "true;"),
        (
            "require('resty.core.base').allows_subsystem('stream')",
            "unsupported subsystem: http;",
        ),
        (
            "(function() local t = {} return require('resty.core.ctx').get_ctx_table(t) == t and ngx.ctx == t end)()",
            "true;",
        ),
        (
            "type(require('resty.core.time').monotonic_msec())",
            "number;",
        ),
        ("require('table.nkeys')({ 1, a = 2 })", "2;"),
        ("require('table.isempty')({})", "true;"),
        (
            "ndk.set_var.set_nothing('x')",
            "ndk.set_var: directive \"set_nothing\" not found or does not use ndk_set_var_value;",
        ),
    ]);
}

#[test]
fn what_cannot_be_called_in_a_phase_says_which_it_is() {
    let Some(server) = super::lua::lua(
        "lua_shared_dict shared 1m;
        init_by_lua_block {
            function try(...)
                local said = {}
                for _, call in ipairs { ... } do
                    local ok, err = pcall(unpack(call))
                    said[#said + 1] = ok and 'ok' or tostring(err):gsub('^[^ ]*:%d+: ', ''):gsub('API disabled in the ', '')
                end
                ngx.shared.shared:set(ngx.get_phase(), table.concat(said, ', '))
            end
            function try_all()
                try({ ngx.say, 'x' }, { ngx.eof }, { ngx.send_headers }, { ngx.exec, '/x' }, { ngx.redirect, '/x' },
                    { ngx.location.capture, '/x' }, { ngx.req.read_body }, { ngx.thread.spawn, try },
                    { ngx.req.get_post_args })
            end
        }
        server { listen 127.0.0.1:%%PORT%%;
            location = /filter { content_by_lua_block { ngx.say('x') } header_filter_by_lua_block { try_all() } }
            location = /timer { content_by_lua_block {
                ngx.timer.at(0, function()
                    try({ ngx.say, 'x' }, { ngx.eof }, { ngx.req.read_body }, { ngx.req.get_headers }, { ngx.req.is_internal })
                end)
                while not ngx.shared.shared:get('timer') do ngx.sleep(0.005) end
            } }
            location /said { content_by_lua_block { ngx.print(ngx.shared.shared:get(ngx.var.arg_phase)) } }
        }",
    ) else {
        return;
    };
    let server = server.start();
    server.get("/filter").expect(200);
    let filter = "context of header_filter_by_lua*";
    let expected = format!(
        "{}no request body found; maybe you should turn on lua_need_request_body?",
        format!("{filter}, ").repeat(8)
    );
    let said = |phase: &str| {
        server
            .get(&format!("/said?phase={phase}"))
            .expect(200)
            .text()
    };
    assert_eq!(said("header_filter"), expected);
    server.get("/timer").expect(200);
    assert_eq!(
        said("timer"),
        "context of ngx.timer, context of ngx.timer, context of ngx.timer, current context, current context"
    );
}
