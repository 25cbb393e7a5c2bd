import http.client
import http.cookiejar
import json
import re
import urllib.parse
import urllib.request
import xmlrpc.client

from say import PORT, ask, attempt, brief, say

BASE = f"http://127.0.0.1:{PORT}"
jar = http.cookiejar.CookieJar()
browser = urllib.request.build_opener(urllib.request.HTTPCookieProcessor(jar))


def visit(target, data=None, headers=None):
    if isinstance(data, dict):
        data = urllib.parse.urlencode(data).encode()
    request = urllib.request.Request(target if target.startswith("http") else BASE + target, data, headers or {})
    try:
        reply = browser.open(request, timeout=60)
    except urllib.error.HTTPError as error:
        return error.code, error.url, error.read().decode("utf-8", "replace")
    return reply.status, reply.url, reply.read().decode("utf-8", "replace")


def hidden(page, name):
    found = re.search(rf'name="{name}"[^>]*value="([^"]*)"', page)
    return found.group(1) if found else ""


say("before", *visit("/")[:2])
status, _, page = visit("/wp-admin/install.php?step=2", {
    "weblog_title": "A site", "user_name": "admin", "admin_password": "pass-word-1", "admin_password2": "pass-word-1",
    "pw_weak": "on", "admin_email": "a@example.org", "blog_public": "1", "Submit": "Install", "language": "",
})
say("install", status, "Success" in page)
status, url, page = visit("/")
say("home", status, url, "A site" in page, "Hello world!" in page)
status, url, page = visit("/wp-admin/")
say("admin before login", status, url.split("?")[0])
visit("/wp-login.php")
status, url, page = visit("/wp-login.php", {"log": "admin", "pwd": "wrong", "wp-submit": "Log In", "testcookie": "1"})
say("wrong password", status, "incorrect" in page)
status, url, page = visit("/wp-login.php", {
    "log": "admin", "pwd": "pass-word-1", "wp-submit": "Log In", "redirect_to": BASE + "/wp-admin/", "testcookie": "1"})
say("login", status, url, "Dashboard" in page)
say("cookies", sorted(re.sub("[0-9a-f]{32}", "HASH", cookie.name) for cookie in jar))
status, _, page = visit("/wp-admin/options-permalink.php")
status, url, page = visit("/wp-admin/options-permalink.php", {
    "_wpnonce": hidden(page, "_wpnonce"), "_wp_http_referer": "/wp-admin/options-permalink.php",
    "selection": "/%year%/%postname%/", "permalink_structure": "/%year%/%postname%/", "category_base": "", "tag_base": "",
    "submit": "Save Changes"})
say("permalinks", status, "updated" in page)
nonce = visit("/wp-admin/admin-ajax.php?action=rest-nonce")[2]
rest = {"X-WP-Nonce": nonce, "Content-Type": "application/json"}
status, _, body = visit("/wp-json/wp/v2/posts", json.dumps({"title": "From REST", "content": "ü " * 1000, "status": "publish"}).encode(), rest)
post = json.loads(body)
say("post", status, post["link"])
status, url, page = visit(post["link"])
say("pretty", status, url, "From REST" in page)
say("plain goes to pretty", *visit(f"/?p={post['id']}")[:2])
picture = bytes.fromhex("89504e470d0a1a0a0000000d49484452000000010000000108060000001f15c4890000000d49444154789c6360f8cfc0f01f0005000201e221bc330000000049454e44ae426082")
status, _, body = visit("/wp-json/wp/v2/media", picture, {"X-WP-Nonce": nonce, "Content-Type": "image/png", "Content-Disposition": 'attachment; filename="a.png"'})
media = json.loads(body)
say("upload", status, media.get("source_url", body[:200]))
status, fields, body = ask(PORT, "GET", urllib.parse.urlparse(media["source_url"]).path)
say("uploaded", status, fields["Content-Type"], body == picture)
status, _, page = visit("/wp-admin/post-new.php")
say("editor", status, len(page) > 50_000)
server = xmlrpc.client.ServerProxy(BASE + "/xmlrpc.php")
say("XML-RPC", server.demo.sayHello())
number = server.wp.newPost(1, "admin", "pass-word-1", {"post_title": "From XML-RPC", "post_content": "text", "post_status": "publish"})
say("XML-RPC post", number.isdigit(), server.wp.getPost(1, "admin", "pass-word-1", number)["link"])
large = xmlrpc.client.Binary(bytes(range(256)) * 8000)
sent = server.wp.uploadFile(1, "admin", "pass-word-1", {"name": "large.txt", "type": "text/plain", "bits": large})
say("XML-RPC upload", sent["url"])
say("XML-RPC uploaded", brief(ask(PORT, "GET", urllib.parse.urlparse(sent["url"]).path)[2]))
attempt("XML-RPC refused", lambda: server.wp.getPosts(1, "admin", "no"))
status, _, page = visit(post["link"])
status, url, page = visit("/wp-comments-post.php", {"comment": "a comment", "comment_post_ID": post["id"], "comment_parent": "0", "submit": "Post"})
say("comment", status, url.split("#")[0], "a comment" in page)
status, _, body = visit("/wp-json/wp/v2/posts?per_page=2&_fields=title,link")
say("list", status, [entry["link"] for entry in json.loads(body)])
status, fields, body = ask(PORT, "GET", "/wp-json/wp/v2/posts?per_page=1")
say("list's fields", fields["X-WP-Total"], fields["X-WP-TotalPages"], fields["Link"])
say("feed", visit("/feed/")[0], "From REST" in visit("/feed/")[2])
say("search", visit("/?s=REST")[0])
say("nothing there", visit("/2020/none/")[0])
say("sitemap", visit("/wp-sitemap.xml")[0])
status, fields, body = ask(PORT, "GET", "/wp-includes/css/dashicons.min.css")
say("own file", status, fields["Content-Type"], brief(body))
status, fields, body = ask(PORT, "GET", "/wp-admin")
say("folder", status, fields["Location"])
status, fields, body = ask(PORT, "HEAD", "/")
say("head", status, fields["Content-Type"], body)
say("no script", ask(PORT, "GET", "/wp-content/none.php")[0], ask(PORT, "GET", "/wp-content/uploads/x.php/y")[0])
