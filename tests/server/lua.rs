//! Lua: scripts in the phases of a request, and what they may call.
//!
//! Behaviour of lua-nginx-module is stated about nginx too, where its modules are installed.

use weir_tests::{Server, Signal, Site, http, is_oracle, skip_on_oracle, until};

/// A site with Lua. `None` where nginx is under test and has no modules for it.
pub(super) fn lua(block: &str) -> Option<Site> {
    let site = http(block);
    if !is_oracle() {
        return Some(site);
    }
    let folder = std::path::Path::new("/usr/lib/nginx/modules");
    let modules = ["ndk_http_module.so", "ngx_http_lua_module.so"].map(|name| folder.join(name));
    if !modules.iter().all(|module| module.exists()) {
        println!("skipped on nginx: libnginx-mod-http-lua is not installed");
        return None;
    }
    let lines = modules.map(|module| format!("load_module {};\n", module.display()));
    Some(site.main(&lines.concat()))
}

/// A server with these locations.
fn with(locations: &str) -> Option<Server> {
    with_http("", locations)
}

fn with_http(outer: &str, locations: &str) -> Option<Server> {
    let block = format!(
        "{outer}
        default_type text/plain;
        lua_shared_dict shared 1m;
        server {{ listen 127.0.0.1:%%PORT%%; server_name localhost;
            {locations}
        }}"
    );
    Some(lua(&block)?.start())
}

/// What a script says.
fn said(server: &Server, target: &str) -> String {
    server.get(target).expect(200).text()
}

/// A script that runs in a location of its own.
pub(super) fn script(code: &str) -> Option<String> {
    let server = with(&format!(
        "location / {{ content_by_lua_block {{ {code} }} }}"
    ))?;
    Some(said(&server, "/?x=1"))
}

pub(super) fn says(code: &str, text: &str) {
    if let Some(said) = script(code) {
        assert_eq!(said, text, "{code}");
    }
}

const LIST: &str = "local function list(...) local t = {} for i = 1, select('#', ...) do \
                    t[i] = tostring((select(i, ...))) end return table.concat(t, ',') end ";

fn lists(code: &str, text: &str) {
    says(&format!("{LIST} ngx.print(list({code}))"), text);
}

#[test]
fn a_variable_is_what_its_script_returns() {
    let Some(server) = with(
        r#"set_by_lua_block $escaped_path {
            local function encode_uri(uri)
                return uri:gsub("[^A-Za-z0-9;,/?:@&=+$_.!~*'()#-]", function(c)
                    return string.format("%%%02X", string.byte(c))
                end)
            end
            return encode_uri(ngx.var.uri)
        }
        set $before $escaped_path;
        set_by_lua $sum 'return ngx.arg[1] + ngx.arg[2]' $arg_a $arg_b;
        location / { return 200 "$before $sum"; }"#,
    ) else {
        return;
    };
    assert_eq!(
        said(&server, "/a%20b/%E4%BD%A0%3f;x?a=1&b=2"),
        "/a%20b/%E4%BD%A0?;x 3"
    );
}

#[test]
fn scripts_run_in_their_phases() {
    let Some(server) = with(
        r#"location /rewrite { rewrite_by_lua_block { ngx.req.set_uri("/target", true) } }
        location /target { return 200 target; }
        location /redirect { rewrite_by_lua_block { return ngx.redirect("/x?y", 301) } }
        location /access {
            access_by_lua_block { if ngx.var.arg_key ~= "s" then return ngx.exit(ngx.HTTP_FORBIDDEN) end }
            content_by_lua_block { ngx.print(ngx.get_phase()) }
        }
        location /filter {
            header_filter_by_lua_block { ngx.header["X-Two"] = {"a", "b"}; ngx.header.content_length = nil; ngx.status = 201 }
            body_filter_by_lua_block {
                ngx.arg[1] = string.upper(ngx.arg[1])
                if ngx.arg[2] then ngx.arg[1] = ngx.arg[1] .. "!" end
            }
            return 200 "some text";
        }
        location /log { log_by_lua_block { ngx.shared.shared:incr("logged", 1, 0) } return 200 ok; }
        location /logged { content_by_lua_block { ngx.print(ngx.shared.shared:get("logged")) } }"#,
    ) else {
        return;
    };
    assert_eq!(said(&server, "/rewrite"), "target");
    assert_eq!(
        server.get("/redirect").expect(301).field("Location"),
        "/x?y"
    );
    server.get("/access").expect(403);
    assert_eq!(said(&server, "/access?key=s"), "content");
    let filtered = server.get("/filter").expect(201);
    assert_eq!(filtered.all("X-Two"), ["a", "b"]);
    assert_eq!(filtered.text(), "SOME TEXT!");
    said(&server, "/log");
    said(&server, "/log");
    until(|| (said(&server, "/logged") == "2").then_some(())).expect("both are logged");
}

#[test]
fn a_script_makes_the_response() {
    let Some(server) = with(
        r#"location /tea { content_by_lua_block {
            ngx.status = 418
            ngx.header.content_type = "text/x"
            ngx.header["Set-Cookie"] = {"a=1", "b=2"}
            ngx.say("tea ", 1, nil, true, {" and ", {"more", 2}})
            ngx.exit(418)
        } }
        location /none { content_by_lua_block { ngx.exit(204) } }
        location /empty { content_by_lua_block { local x = 1 } }
        location /exec { content_by_lua_block { return ngx.exec("/said", "q=1") } }
        location /named { content_by_lua_block { return ngx.exec("@named") } }
        location @named { return 200 "named $uri"; }
        location /said { content_by_lua_block { ngx.print(ngx.var.args) } }
        location /parts { content_by_lua_block {
            for i = 1, 3 do ngx.print(i) ngx.flush(true) ngx.sleep(0.001) end
        } }
        location /long { content_by_lua_block { for i = 1, 300 do ngx.print(string.rep("x", 1000)) end } }
        location /oops { content_by_lua_block { error("oops") } }"#,
    ) else {
        return;
    };
    let tea = server.get("/tea").expect(418);
    assert_eq!(tea.text(), "tea 1niltrue and more2\n");
    assert_eq!(tea.field("Content-Type"), "text/x");
    assert_eq!(tea.all("Set-Cookie"), ["a=1", "b=2"]);
    server.get("/none").expect(204);
    assert_eq!(said(&server, "/empty"), "");
    assert_eq!(said(&server, "/exec"), "q=1");
    assert_eq!(said(&server, "/named"), "named /named");
    assert_eq!(said(&server, "/parts"), "123");
    assert_eq!(said(&server, "/long").len(), 300_000);
    server.get("/oops").expect(500);
    server.line("error.log", "oops");
}

#[test]
fn errors_name_the_line_of_the_configuration() {
    let Some(server) = with(
        "location / { content_by_lua_block {\nlocal x\n\nx.y = 1 } }
        location /word { content_by_lua 'local x\n x.y = 1\n'; }",
    ) else {
        return;
    };
    let conf = server.read("nginx.conf");
    let line = |text: &str| {
        let found = conf.lines().position(|line| line.contains(text));
        1 + found.expect("the line is there")
    };
    server.get("/").expect(500);
    let at = line("content_by_lua_block");
    server.line(
        "error.log",
        &format!("content_by_lua(nginx.conf:{at}):4: attempt to"),
    );
    // Code in a word is known by the line where the word ends.
    server.get("/word").expect(500);
    let at = line("content_by_lua '") + 2;
    server.line(
        "error.log",
        &format!("content_by_lua(nginx.conf:{at}):2: attempt to"),
    );
}

#[test]
fn code_that_is_not_lua_is_told_before_a_client_comes() {
    if skip_on_oracle("nginx finds out when a request comes") {
        return;
    }
    let Some(site) = lua(
        "server { listen 127.0.0.1:%%PORT%%;\n location / {\n content_by_lua_block {\n ngx.say(\n } } }",
    ) else {
        return;
    };
    let finished = site.test();
    assert_eq!(finished.code, 0);
    let told = "[warn] failed to load the Lua code of \"content_by_lua_block\": content_by_lua(nginx.conf:11):3:";
    assert!(finished.stderr.contains(told), "{}", finished.stderr);
}

#[test]
fn what_the_client_sent() {
    let Some(server) = with(
        r#"location / { content_by_lua_block {
            ngx.req.read_body()
            local h = ngx.req.get_headers()
            ngx.say(ngx.req.get_method(), " ", ngx.req.http_version(), " ", h["x-test"], " ", h.X_Test)
            ngx.say(ngx.req.get_body_data(), " ", ngx.req.get_post_args().k)
            local args = ngx.req.get_uri_args()
            ngx.say(args.a[1], args.a[2], " ", args.b)
            ngx.req.set_header("X-Test", "new")
            ngx.say(ngx.var.http_x_test)
            ngx.req.clear_header("X-Test")
            ngx.say(ngx.var.http_x_test)
            ngx.req.set_uri_args({ z = "1 2" })
            ngx.say(ngx.var.args)
        } }"#,
    ) else {
        return;
    };
    let reply = server.raw(
        "POST /?a=1&a=2&b HTTP/1.1\r\nHost: localhost\r\nX-Test: old\r\nContent-Length: 7\r\n\r\nk=v&x=y",
    );
    assert_eq!(
        reply.expect(200).text(),
        "POST 1.1 old old\nk=v&x=y v\n12 true\nnew\nnil\nz=1%202\n"
    );
}

#[test]
fn texts() {
    lists(
        "ngx.escape_uri(\"a b/c'~é\"), ngx.unescape_uri('a%20b+c%zz')",
        "a%20b%2Fc'~%C3%A9,a b c%zz",
    );
    lists(
        "ngx.encode_args{a = {1, 'x y'}}, ngx.decode_args('a=1&b&c=%20').c",
        "a=1&a=x%20y, ",
    );
    lists(
        "ngx.encode_base64('hello!!'), ngx.decode_base64('aGVsbG8'), ngx.md5('a'), ngx.encode_base64(ngx.hmac_sha1('k', 'a'))",
        "aGVsbG8hIQ==,hello,0cc175b9c0f1b6a831c399e269772661,QOfUQcrbF7B/BQNBqiOmgg7YHIs=",
    );
    lists(
        "ngx.crc32_long('abc'), ngx.quote_sql_str(\"a'b\"), ngx.http_time(0), ngx.parse_http_time('Thu, 01 Jan 1970 00:00:10 GMT')",
        "891568578,'a\\'b',Thu, 01 Jan 1970 00:00:00 GMT,10",
    );
}

#[test]
fn regular_expressions() {
    lists(
        "ngx.re.match('hello, 1234', '([a-z]+), (?<num>[0-9]+)', 'jo').num, ngx.re.match('abc', '(x)|b')[1], ngx.re.match('abc', 'x')",
        "1234,false,nil",
    );
    lists(
        "ngx.re.find('hello, 1234', '([0-9])([0-9]+)', 'jo', nil, 2)",
        "9,11",
    );
    lists(
        "ngx.re.sub('hello, 1234', '([0-9])[0-9]', '[$0][$1]')",
        "hello, [12][1]34,1",
    );
    lists(
        "ngx.re.gsub('hello, world', '([a-z])[a-z]+', function(m) ngx.sleep(0.001) return m[1] end, 'i')",
        "h, w,2",
    );
    lists("ngx.re.gsub('abcb', 'b*', '-')", "-a--c--,5");
    says(
        "for m in ngx.re.gmatch('a1b2', '([a-z])([0-9])') do ngx.print(m[2], m[1]) end",
        "1a2b",
    );
    lists("ngx.re.match('ab12', '[0-9]+', 'a')", "nil");
}

#[test]
fn dictionaries() {
    lists(
        "ngx.shared.shared:set('a', 1), ngx.shared.shared:incr('a', 2), ngx.shared.shared:add('a', 1)",
        "true,3,false,exists,false",
    );
    lists(
        "ngx.shared.shared:rpush('l', 1), ngx.shared.shared:lpush('l', 'x'), ngx.shared.shared:lpop('l'), ngx.shared.shared:llen('l')",
        "1,2,x,1",
    );
    lists(
        "ngx.shared.shared:set('t', true, 0.001), ngx.sleep(0.02), ngx.shared.shared:get('t')",
        "true,nil,nil",
    );
}

#[test]
fn a_dictionary_outlives_a_reload() {
    let conf = "lua_shared_dict kept 1m; server { listen 127.0.0.1:%%PORT%%;
        location /set { content_by_lua_block { ngx.print((ngx.shared.kept:incr('n', 1, 0))) } }";
    let Some(site) = lua(&format!("{conf} location /v {{ return 200 one; }} }}")) else {
        return;
    };
    let mut server = site.start();
    assert_eq!(said(&server, "/set"), "1");
    server.reconfigure(&format!("{conf} location /v {{ return 200 two; }} }}"));
    server.signal(Signal::HUP);
    until(|| (said(&server, "/v") == "two").then_some(())).expect("the new configuration serves");
    assert_eq!(said(&server, "/set"), "2");
}

#[test]
fn light_threads_and_coroutines() {
    says(
        r#"local out = {}
        local may_end = { false, true }
        local function work(n)
            out[#out + 1] = "b" .. n
            repeat ngx.sleep(0.001) until may_end[n]
            out[#out + 1] = "e" .. n
            return n
        end
        local a, b = ngx.thread.spawn(work, 1), ngx.thread.spawn(work, 2)
        out[#out + 1] = "m"
        local ok, first = ngx.thread.wait(a, b)
        may_end[1] = true
        local _, second = ngx.thread.wait(a)
        ngx.print(table.concat(out, " "), " ", first, second)"#,
        "b1 b2 m e2 e1 21",
    );
    says(
        r#"local co = coroutine.wrap(function(a)
            local b = coroutine.yield(a + 1)
            ngx.sleep(0.001)
            local c = coroutine.yield(b * 2)
            return c
        end)
        ngx.print(co(1), " ", co(10), " ", co("end"))"#,
        "2 20 end",
    );
    says(
        r#"local sem = require("ngx.semaphore").new()
        local t = ngx.thread.spawn(function() return sem:wait(5) end)
        sem:post(1)
        local _, ok = ngx.thread.wait(t)
        ngx.print(ok, " ", (select(2, sem:wait(0.01))))"#,
        "true timeout",
    );
}

#[test]
fn subrequests() {
    let Some(server) = with(
        r#"location /main { content_by_lua_block {
            local r = ngx.location.capture("/sub?a=1", { args = { b = 2 }, method = ngx.HTTP_POST, body = "xyz" })
            ngx.say(r.status, " ", r.body, " ", r.header["X-Sub"])
            local a, b = ngx.location.capture_multi { { "/file" }, { "/nosuch" } }
            ngx.say(a.status, " ", a.body, " ", b.status)
        } }
        location /file { }
        location /sub { content_by_lua_block {
            ngx.req.read_body()
            ngx.header["X-Sub"] = "yes"
            ngx.print(ngx.req.get_method(), " ", ngx.var.args, " ", ngx.req.get_body_data(), " ", ngx.is_subrequest)
        } }"#,
    ) else {
        return;
    };
    std::fs::write(server.path("html/file"), "content").expect("the folder is writable");
    assert_eq!(
        said(&server, "/main"),
        "200 POST a=1&b=2 xyz true yes\n200 content 404\n"
    );
}

#[test]
fn sockets_and_their_pools() {
    let Some(server) = with(
        r#"location /plain { return 200 "plain text"; }
        location /main { content_by_lua_block {
            for i = 1, 2 do
                local s = ngx.socket.tcp()
                s:settimeout(5000)
                assert(s:connect("127.0.0.1", ngx.var.server_port))
                ngx.print(s:getreusedtimes(), " ")
                s:send({ "GET /plain HTTP/1.1\r\n", "Host: x\r\n\r\n" })
                local head = s:receiveuntil("\r\n\r\n")()
                ngx.say(s:receive(tonumber(head:match("[Ll]ength: (%d+)"))))
                s:setkeepalive(10000, 5)
            end
            local s = ngx.socket.tcp()
            ngx.say(select(2, s:connect("127.0.0.1", 1)))
            ngx.say(select(2, s:send("x")))
        } }"#,
    ) else {
        return;
    };
    assert_eq!(
        said(&server, "/main"),
        "0 plain text\n1 plain text\nconnection refused\nclosed\n"
    );
}

#[test]
fn timers_run_without_a_request() {
    says(
        r#"local ok = ngx.timer.at(0.001, function(premature, a)
            ngx.shared.shared:set("timer", tostring(premature) .. a .. ngx.get_phase())
        end, "x")
        for _ = 1, 500 do
            if ngx.shared.shared:get("timer") then break end
            ngx.sleep(0.01)
        end
        ngx.print(ok, ngx.shared.shared:get("timer"))"#,
        "1falsextimer",
    );
}

#[test]
fn init_scripts_define_what_others_use() {
    let Some(server) = with_http(
        "init_by_lua_block { shared_table = { n = 41 } function add(n) return n + 1 end }
        init_worker_by_lua_block { ngx.shared.shared:set('worker', true) }",
        "location / { content_by_lua_block { ngx.print(add(shared_table.n), ngx.shared.shared:get('worker')) } }",
    ) else {
        return;
    };
    assert_eq!(said(&server, "/"), "42true");
}

/// Loops without an end, each in its way.
const LOOPS: &str = r#"location /loop { content_by_lua_block { local i = 0 while true do i = i + 1 end } }
    location /caught { content_by_lua_block { while true do pcall(function() while true do end end) end } }
    location /inside { content_by_lua_block { coroutine.wrap(function() while true do end end)() } }
    location /set { set_by_lua_block $x { while true do end } return 200 "$x"; }
    location /filter { header_filter_by_lua_block { while true do end } return 200 "x"; }
    location /quick { content_by_lua_block { ngx.print("quick") } }"#;

#[test]
fn an_endless_loop_holds_nobody() {
    if skip_on_oracle("nginx's worker never comes back") {
        return;
    }
    let Some(server) = with_http("lua_run_limit 1h; lua_check_client_abort on;", LOOPS) else {
        return;
    };
    let busy = ["/loop", "/caught", "/inside"].map(|target| {
        let mut connection = server.connect();
        connection.request("GET", target, &[]);
        connection
    });
    for _ in 0..5 {
        assert_eq!(said(&server, "/quick"), "quick");
    }
    // Whoever leaves ends his script.
    drop(busy);
    assert_eq!(said(&server, "/quick"), "quick");
}

#[test]
fn an_endless_loop_ends() {
    if skip_on_oracle("nginx's worker never comes back") {
        return;
    }
    let Some(server) = with_http("lua_run_limit 50ms; lua_hold_limit 20ms;", LOOPS) else {
        return;
    };
    for target in ["/loop", "/caught", "/inside", "/set"] {
        server.get(target).expect(500);
    }
    server.line("error.log", "lua_run_limit");
    let filtered = "GET /filter HTTP/1.1\r\nHost: localhost\r\n\r\n";
    assert!(server.raw_or_closed(filtered).is_none());
    server.line("error.log", "lua_hold_limit");
}

#[test]
fn a_script_that_wants_all_memory_is_refused_it() {
    if skip_on_oracle("nginx knows no bound") {
        return;
    }
    let Some(server) = with_http(
        "lua_memory_limit 32m;",
        r#"location /much { content_by_lua_block {
            local t = {}
            while true do t[#t + 1] = string.rep("x", 1000) .. #t end
        } }
        location /little { content_by_lua_block { ngx.print("little") } }"#,
    ) else {
        return;
    };
    for _ in 0..3 {
        server.get("/much").expect(500);
        assert_eq!(said(&server, "/little"), "little");
    }
    server.line("error.log", "not enough memory");
}

#[test]
fn lua_that_blocks_runs_on_a_thread_of_a_pool() {
    if skip_on_oracle("Debian's module is older") {
        return;
    }
    let Some(site) = lua(r#"lua_package_path "%%DIR%%/?.lua;;";
        server { listen 127.0.0.1:%%PORT%%; location / { content_by_lua_block {
            local ok, sum, list = ngx.run_worker_thread("workers", "work", "add", 1, { 2, 3 })
            ngx.say(ok, " ", sum, " ", list[1].x)
            ngx.say(ngx.run_worker_thread("workers", "work", "nothing"))
            ngx.say(ngx.run_worker_thread("nobody", "work", "add"))
        } } }"#)
    else {
        return;
    };
    let server = site
        .main("thread_pool workers threads=2;\n")
        .file(
            "work.lua",
            "return { add = function(a, t) return a + t[1] + t[2], { { x = 'y' } } end }",
        )
        .start();
    assert_eq!(
        said(&server, "/"),
        "true 6 y\nfalseinvalid function\nfalsethread pool nobody not found\n"
    );
}

#[test]
fn json() {
    if skip_on_oracle("lua-cjson may not be installed") {
        return;
    }
    lists(
        r#"require("cjson").encode({ 1, 2.5, { a = "x/y" } }), require("cjson").decode('{"a":[1,null,"\\u00e9"]}').a[3]"#,
        r#"[1,2.5,{"a":"x\/y"}],é"#,
    );
    // As `%.14g` has them.
    lists(
        r#"require("cjson").encode({ 0.0001, 0.00012345, 0.00001, 1.5e-7, -0.5, 99999999999999, 1e14, 0.1 + 0.2 })"#,
        "[0.0001,0.00012345,1e-05,1.5e-07,-0.5,99999999999999,1e+14,0.3]",
    );
    lists(
        r#"require("cjson.safe").decode("{"), require("cjson").decode("null") == ngx.null"#,
        "nil,true",
    );
}

#[test]
fn built_in_modules_are_accepted() {
    if skip_on_oracle("nginx loads them") {
        return;
    }
    let site = http("server { listen 127.0.0.1:%%PORT%%; location / { content_by_lua_block { ngx.print(1) } } }")
        .main("load_module /usr/lib/nginx/modules/ndk_http_module.so;\nload_module modules/ngx_http_lua_module.so;\n");
    assert_eq!(said(&site.start(), "/"), "1");
}

#[test]
fn a_script_chooses_the_server_of_each_try() {
    let Some(server) = with_http(
        r#"upstream chosen {
            server 0.0.0.1;
            balancer_by_lua_block {
                local balancer = require "ngx.balancer"
                if ngx.var.arg_to == "nobody" then return ngx.exit(503) end
                local failed = balancer.get_last_failure()
                if ngx.var.arg_to == "retry" and not failed then
                    balancer.set_more_tries(1)
                    assert(balancer.set_current_peer("127.0.0.1", 1))
                else
                    assert(balancer.set_current_peer("127.0.0.1", ngx.var.server_port))
                end
            }
        }"#,
        r#"location /chosen { proxy_pass http://chosen/target; }
        location /target { return 200 "target"; }"#,
    ) else {
        return;
    };
    assert_eq!(said(&server, "/chosen"), "target");
    assert_eq!(said(&server, "/chosen?to=retry"), "target");
    if !is_oracle() {
        // nginx makes a 500 of it.
        server.get("/chosen?to=nobody").expect(503);
    }
}

/// The folder of libraries that are not part of the machine; `LUA_LIBRARIES` names it.
fn libraries() -> Option<String> {
    let folder = std::env::var("LUA_LIBRARIES").ok();
    if folder.is_none() {
        println!("skipped: LUA_LIBRARIES names no folder with resty/redis.lua and resty/http.lua");
    }
    folder
}

#[test]
fn lrucache_works() {
    let folder = std::path::Path::new("/usr/share/lua/5.1/resty/lrucache.lua");
    if !folder.exists() {
        println!("skipped: lua-resty-lrucache is not installed");
        return;
    }
    says(
        r#"local cache = require("resty.lrucache").new(2)
        cache:set("a", 1) cache:set("b", 2) cache:get("a") cache:set("c", 3)
        local pure = require("resty.lrucache.pureffi").new(200)
        pure:set("x", "y")
        ngx.print(cache:get("a"), tostring((cache:get("b"))), cache:get("c"), (pure:get("x")))"#,
        "1nil3y",
    );
}

#[test]
fn resty_http_works() {
    let Some(folder) = libraries() else { return };
    if skip_on_oracle("it needs lua-resty-string, which Weir has built in") {
        return;
    }
    let Some(server) = with_http(
        &format!("lua_package_path '{folder}/?.lua;;';"),
        r#"location /plain { add_header X-Foo bar; return 200 "plain text"; }
        location /echo { content_by_lua_block { ngx.req.read_body() ngx.print(ngx.req.get_body_data()) } }
        location /chunks { content_by_lua_block { for i = 1, 3 do ngx.print("c", i) ngx.flush(true) end } }
        location /main { content_by_lua_block {
            local http = require "resty.http"
            local base = "http://127.0.0.1:" .. ngx.var.server_port
            local res = assert(http.new():request_uri(base .. "/plain?x=1"))
            ngx.say(res.status, " ", res.body, " ", res.headers["x-foo"])
            ngx.say(http.new():request_uri(base .. "/echo", { method = "POST", body = "some body" }).body)
            ngx.say(http.new():request_uri(base .. "/chunks").body)
        } }"#,
    ) else {
        return;
    };
    assert_eq!(
        said(&server, "/main"),
        "200 plain text bar
some body
c1c2c3
"
    );
}

#[test]
fn resty_redis_works_with_a_real_redis() {
    let Some(folder) = libraries() else { return };
    let site = lua(&format!(
        r#"lua_package_path '{folder}/?.lua;;';
        server {{ listen 127.0.0.1:%%PORT%%; location / {{ content_by_lua_block {{
            local red = require("resty.redis"):new()
            assert(red:connect("unix:%%DIR%%/redis.sock"))
            red:set("dog", "an animal")
            ngx.say(red:get("dog"), " ", red:get("nothing") == ngx.null)
            red:init_pipeline() red:set("n", 1) red:incr("n") red:get("n")
            local r = red:commit_pipeline()
            ngx.say(r[1], " ", r[2], " ", r[3])
            ngx.say((select(2, red:incr("dog"))))
            ngx.say(red:set_keepalive(10000, 10))
        }} }} }}"#
    ));
    let Some(site) = site else { return };
    let socket = site.path("redis.sock");
    let redis = std::process::Command::new("redis-server")
        .args([
            "--port",
            "0",
            "--save",
            "",
            "--unixsocketperm",
            "777",
            "--unixsocket",
        ])
        .arg(&socket)
        .stdout(std::process::Stdio::null())
        .spawn();
    let Ok(mut redis) = redis else {
        println!("skipped: redis-server is not installed");
        return;
    };
    until(|| socket.exists().then_some(())).expect("redis listens");
    let server = site.start();
    let texts: Vec<String> = (0..2).map(|_| said(&server, "/")).collect();
    redis.kill().expect("it runs");
    redis.wait().expect("it was started here");
    for text in texts {
        assert_eq!(
            text,
            "an animal true
OK 2 2
ERR value is not an integer or out of range
1
"
        );
    }
}

#[test]
fn a_script_says_how_long_a_server_is_waited_for() {
    let silent = weir_tests::Scripted::start(|client, _| {
        weir_tests::read_until(client, b"no such thing");
    });
    let Some(server) = with_http(
        &format!(
            r#"upstream chosen {{
                server 0.0.0.1;
                balancer_by_lua_block {{
                    local balancer = require "ngx.balancer"
                    assert(balancer.set_current_peer("127.0.0.1", {}))
                    assert(balancer.set_timeouts(5, nil, 0.02))
                }}
            }}"#,
            silent.port()
        ),
        "location / { proxy_pass http://chosen; }",
    ) else {
        return;
    };
    server.get("/").expect(504);
}

#[test]
fn libraries_are_loaded_while_requests_wait() {
    let Some(site) = lua(r#"lua_package_path "%%DIR%%/nowhere/?.lua;%%DIR%%/?.lua;;";
        lua_shared_dict shared 1m;
        server { listen 127.0.0.1:%%PORT%%;
            location = /outer { content_by_lua_block {
                local outer = require "folder.outer"
                ngx.print(outer.name, " ", outer.inner.name, " ", ngx.shared.shared:get("loads"), " ",
                    require("folder.outer") == outer, " ", require("nothing"))
            } }
            location = /wrong { content_by_lua_block {
                for _, name in ipairs { "broken", "failing", "absent", "circle" } do
                    local ok, err = pcall(require, name)
                    ngx.say(name, " ", ok, " ", err:match("loop[^\n]*") or err:match("^[^\n]*"))
                end
            } }
            location = /coroutine { content_by_lua_block {
                local co = coroutine.wrap(function() return require("again").name end)
                local sorted = { 2, 1 }
                table.sort(sorted, function(a, b) return require("sorting").before(a, b) end)
                ngx.print(co(), sorted[1])
            } }
        }"#)
    else {
        return;
    };
    let count = "ngx.shared.shared:incr('loads', 1, 0)";
    let server = site
        .file(
            "folder/outer.lua",
            format!("{count} return {{ name = ..., inner = require 'folder.inner' }}"),
        )
        .file("folder/inner.lua", "return { name = ... }")
        .file("nothing.lua", "#!/usr/bin/lua\nlocal x = 1")
        .file("broken.lua", "if")
        .file("failing.lua", "error('it fails')")
        .file("circle.lua", "require 'circle'")
        .file("again.lua", "return { name = 'again' }")
        .file(
            "sorting.lua",
            "return { before = function(a, b) return a < b end }",
        )
        .start();
    let mut connections: Vec<_> = (0..8).map(|_| server.connect()).collect();
    for connection in &mut connections {
        connection.request("GET", "/outer", &[]);
    }
    for mut connection in connections {
        let text = connection.reply().expect(200).text();
        assert_eq!(text, "folder.outer folder.inner 1 true true");
    }
    let folder = server.path("").display().to_string();
    let folder = folder.trim_end_matches('/');
    assert_eq!(
        said(&server, "/wrong").replace(folder, ""),
        "broken false error loading module 'broken' from file '/broken.lua':
failing false /failing.lua:1: it fails
absent false module 'absent' not found:
circle false loop or previous error loading module 'circle'
"
    );
    assert_eq!(said(&server, "/coroutine"), "again1");
}

/// What lua-nginx-module documents, by the name that a script would use.
const SURFACE: &str = "ngx.arg ngx.var ngx.OK ngx.ERROR ngx.AGAIN ngx.DONE ngx.DECLINED ngx.null ngx.HTTP_GET \
    ngx.HTTP_HEAD ngx.HTTP_PUT ngx.HTTP_POST ngx.HTTP_DELETE ngx.HTTP_OPTIONS ngx.HTTP_MKCOL ngx.HTTP_COPY \
    ngx.HTTP_MOVE ngx.HTTP_PROPFIND ngx.HTTP_PROPPATCH ngx.HTTP_LOCK ngx.HTTP_UNLOCK ngx.HTTP_PATCH ngx.HTTP_TRACE \
    ngx.HTTP_OK ngx.HTTP_CREATED ngx.HTTP_ACCEPTED ngx.HTTP_NO_CONTENT ngx.HTTP_PARTIAL_CONTENT \
    ngx.HTTP_SPECIAL_RESPONSE ngx.HTTP_MOVED_PERMANENTLY ngx.HTTP_MOVED_TEMPORARILY ngx.HTTP_SEE_OTHER \
    ngx.HTTP_NOT_MODIFIED ngx.HTTP_TEMPORARY_REDIRECT ngx.HTTP_PERMANENT_REDIRECT ngx.HTTP_BAD_REQUEST \
    ngx.HTTP_UNAUTHORIZED ngx.HTTP_PAYMENT_REQUIRED ngx.HTTP_FORBIDDEN ngx.HTTP_NOT_FOUND ngx.HTTP_NOT_ALLOWED \
    ngx.HTTP_NOT_ACCEPTABLE ngx.HTTP_REQUEST_TIMEOUT ngx.HTTP_CONFLICT ngx.HTTP_GONE ngx.HTTP_UPGRADE_REQUIRED \
    ngx.HTTP_TOO_MANY_REQUESTS ngx.HTTP_CLOSE ngx.HTTP_ILLEGAL ngx.HTTP_INTERNAL_SERVER_ERROR \
    ngx.HTTP_METHOD_NOT_IMPLEMENTED ngx.HTTP_BAD_GATEWAY ngx.HTTP_SERVICE_UNAVAILABLE ngx.HTTP_GATEWAY_TIMEOUT \
    ngx.HTTP_VERSION_NOT_SUPPORTED ngx.HTTP_INSUFFICIENT_STORAGE ngx.STDERR ngx.EMERG ngx.ALERT ngx.CRIT ngx.ERR \
    ngx.WARN ngx.NOTICE ngx.INFO ngx.DEBUG print ngx.ctx ngx.location.capture ngx.location.capture_multi ngx.status \
    ngx.header ngx.resp.get_headers ngx.req.is_internal ngx.req.start_time ngx.req.http_version ngx.req.raw_header \
    ngx.req.get_method ngx.req.set_method ngx.req.set_uri ngx.req.set_uri_args ngx.req.get_uri_args \
    ngx.req.get_post_args ngx.req.get_headers ngx.req.set_header ngx.req.clear_header ngx.req.read_body \
    ngx.req.discard_body ngx.req.get_body_data ngx.req.get_body_file ngx.req.set_body_data ngx.req.set_body_file \
    ngx.req.init_body ngx.req.append_body ngx.req.finish_body ngx.req.socket ngx.exec ngx.redirect ngx.send_headers \
    ngx.headers_sent ngx.print ngx.say ngx.log ngx.flush ngx.exit ngx.eof ngx.sleep ngx.escape_uri ngx.unescape_uri \
    ngx.encode_args ngx.decode_args ngx.encode_base64 ngx.decode_base64 ngx.crc32_short ngx.crc32_long ngx.hmac_sha1 \
    ngx.md5 ngx.md5_bin ngx.sha1_bin ngx.quote_sql_str ngx.today ngx.time ngx.now ngx.update_time ngx.localtime \
    ngx.utctime ngx.cookie_time ngx.http_time ngx.parse_http_time ngx.is_subrequest ngx.re.match ngx.re.find \
    ngx.re.gmatch ngx.re.sub ngx.re.gsub ngx.socket.udp ngx.socket.stream ngx.socket.tcp ngx.socket.connect \
    ngx.get_phase ngx.thread.spawn ngx.thread.wait ngx.thread.kill ngx.on_abort ngx.timer.at ngx.timer.every \
    ngx.timer.running_count ngx.timer.pending_count ngx.config.subsystem ngx.config.debug ngx.config.prefix \
    ngx.config.nginx_version ngx.config.nginx_configure ngx.config.ngx_lua_version ngx.worker.exiting ngx.worker.pid \
    ngx.worker.pids ngx.worker.id ngx.worker.count ngx.run_worker_thread ndk.set_var coroutine.create \
    coroutine.resume coroutine.yield coroutine.wrap coroutine.running coroutine.status \
    shared:get shared:get_stale shared:set shared:safe_set shared:add shared:safe_add shared:replace shared:delete \
    shared:incr shared:lpush shared:rpush shared:lpop shared:rpop shared:llen shared:ttl shared:expire \
    shared:flush_all shared:flush_expired shared:get_keys shared:capacity shared:free_space \
    tcp:bind tcp:connect tcp:setclientcert tcp:sslhandshake tcp:send tcp:receive tcp:receiveany tcp:receiveuntil \
    tcp:close tcp:settimeout tcp:settimeouts tcp:setoption tcp:setkeepalive tcp:getreusedtimes \
    udp:bind udp:setpeername udp:send udp:receive udp:close udp:settimeout \
    ngx.semaphore/new ngx.balancer/set_current_peer ngx.balancer/set_more_tries ngx.balancer/get_last_failure \
    ngx.balancer/set_timeouts ngx.balancer/recreate_request ngx.ssl/clear_certs ngx.ssl/cert_pem_to_der \
    ngx.ssl/set_der_cert ngx.ssl/priv_key_pem_to_der ngx.ssl/set_der_priv_key ngx.ssl/server_name \
    ngx.ssl/server_port ngx.ssl/raw_server_addr ngx.ssl/raw_client_addr ngx.ssl/get_tls1_version \
    ngx.ssl/get_tls1_version_str ngx.ssl/parse_pem_cert ngx.ssl/parse_pem_priv_key ngx.ssl/set_cert \
    ngx.ssl/set_priv_key ngx.ssl/verify_client ngx.ssl.clienthello/get_client_hello_server_name \
    ngx.ssl.clienthello/get_client_hello_ext ngx.ssl.clienthello/set_protocols ngx.base64/encode_base64url \
    ngx.base64/decode_base64url ngx.re/split ngx.req/add_header ngx.resp/add_header ngx.errlog/raw_log \
    ngx.errlog/get_sys_filter_level ngx.process/type ngx.process/get_master_pid ngx.pipe/spawn \
    ngx.ocsp/get_ocsp_responder_from_der_chain ngx.ssl.session/get_serialized_session";

#[test]
fn the_documented_names_are_there() {
    let names: String = SURFACE
        .split_whitespace()
        .map(|name| format!("{name:?}, "))
        .collect();
    let Some(text) = script(&format!(
        r#"local absent = {{}}
        local objects = {{ shared = ngx.shared.shared, tcp = ngx.socket.tcp(), udp = ngx.socket.udp() }}
        for _, name in ipairs {{ {names} }} do
            local ok, found = pcall(function()
                local object, method = name:match("^(%w+):(.*)$")
                if object then return objects[object][method] end
                local module, field = name:match("^(.*)/(.*)$")
                if module then return require(module)[field] end
                local value = _G
                for part in name:gmatch("[^.]+") do value = value[part] end
                return value
            end)
            if not ok or found == nil then absent[#absent + 1] = name end
        end
        ngx.print(table.concat(absent, " "))"#
    )) else {
        return;
    };
    // Debian's is older than some of them.
    let absent = match is_oracle() {
        true => "udp:bind ngx.pipe/spawn",
        false => "",
    };
    assert_eq!(text, absent);
}

#[test]
fn arguments_of_set_by_lua_are_those_of_set() {
    let Some(server) = with(
        r#"location ~ ^/(.*)$ {
            set $plain $1;
            set_by_lua $lua 'return ngx.arg[1]' $1;
            return 200 "$plain $lua";
        }"#,
    ) else {
        return;
    };
    assert_eq!(said(&server, "/a%20b"), "a%20b a%20b");
    assert_eq!(said(&server, "/ab"), "ab ab");
}

#[test]
fn a_script_can_take_away_what_the_server_says_of_itself() {
    let Some(server) = with(
        "location /none { content_by_lua_block { ngx.header.Server = nil ngx.header['date'] = nil ngx.say('ok') } }
         location /filter { header_filter_by_lua_block { ngx.header.Server = '' } return 200 ok; }
         location /named { header_filter_by_lua_block { ngx.header.Server = 'mine' } return 200 ok; }
         location /again { header_filter_by_lua_block { ngx.header.Server = nil ngx.header.Server = 'mine' }
            return 200 ok; }",
    ) else {
        return;
    };
    let reply = server.get("/none");
    assert!(!reply.has("Server") && !reply.has("Date"));
    assert!(!server.get("/filter").has("Server"));
    assert_eq!(server.get("/named").all("Server"), ["mine"]);
    assert_eq!(server.get("/again").all("Server"), ["mine"]);
}
