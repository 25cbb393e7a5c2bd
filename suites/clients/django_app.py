"""A project of Django in one file: forms with their tokens, sessions, uploads, streams, redirects, a page of the server's
own files."""
import os
import sys
import time

import django
from django.conf import settings
from django.core.wsgi import get_wsgi_application
from django.http import FileResponse, HttpResponse, HttpResponseRedirect, JsonResponse, StreamingHttpResponse
from django.middleware.csrf import get_token
from django.urls import path
from django.views.decorators.csrf import csrf_exempt
from django.views.decorators.http import condition

HERE = os.path.dirname(os.path.abspath(__file__))
settings.configure(
    DEBUG=False,
    SECRET_KEY="word",
    ALLOWED_HOSTS=["*"],
    ROOT_URLCONF=__name__,
    MIDDLEWARE=[
        "django.middleware.security.SecurityMiddleware",
        "django.middleware.gzip.GZipMiddleware",
        "django.contrib.sessions.middleware.SessionMiddleware",
        "django.middleware.common.CommonMiddleware",
        "django.middleware.csrf.CsrfViewMiddleware",
        "django.middleware.http.ConditionalGetMiddleware",
    ],
    SESSION_ENGINE="django.contrib.sessions.backends.signed_cookies",
    APPEND_SLASH=True,
    USE_X_FORWARDED_HOST=True,
    SECURE_PROXY_SSL_HEADER=("HTTP_X_FORWARDED_PROTO", "https"),
    DATA_UPLOAD_MAX_MEMORY_SIZE=64 << 20,
    FILE_UPLOAD_TEMP_DIR=HERE,
)
django.setup()
SEEN = open(os.path.join(HERE, "seen"), "a")


def home(request):
    count = request.session["count"] = request.session.get("count", 0) + 1
    return HttpResponse(f"visit {count}")


def echo(request):
    names = ("PATH_INFO", "QUERY_STRING", "SCRIPT_NAME", "REQUEST_METHOD", "CONTENT_TYPE", "CONTENT_LENGTH", "SERVER_PROTOCOL",
             "HTTP_X_OWN", "HTTP_X_TWICE", "HTTP_ACCEPT", "REMOTE_ADDR")
    meta = {name: request.META.get(name) for name in names}
    meta["url"] = request.build_absolute_uri()
    meta["secure"] = request.is_secure()
    print(meta["REQUEST_METHOD"], meta["PATH_INFO"], meta["QUERY_STRING"], meta["CONTENT_LENGTH"], file=SEEN, flush=True)
    return JsonResponse(meta)


def form(request):
    if request.method == "POST":
        return HttpResponse("took " + request.POST["text"])
    return HttpResponse(get_token(request))


@csrf_exempt
def upload(request):
    import hashlib

    sums = {name: [file.size, hashlib.sha256(file.read()).hexdigest()[:12]] for name, file in request.FILES.items()}
    return JsonResponse({"files": sums, "fields": request.POST.dict(), "raw": 0 if sums else len(request.body)})


def stream(request):
    def lines():
        for number in range(200):
            yield f"line {number}\n" * 50

    return StreamingHttpResponse(lines(), content_type="text/plain")


def download(request):
    return FileResponse(open(os.path.join(HERE, "large"), "rb"), as_attachment=True, filename="ü large.bin")


def accelerated(request):
    response = HttpResponse(content_type="text/x-own")
    response["X-Accel-Redirect"] = "/files/large"
    response["Content-Disposition"] = "attachment"
    return response


def fails(request):
    raise RuntimeError("on purpose")


def slow(request):
    time.sleep(0.3)
    return HttpResponse("slow")


@condition(etag_func=lambda request: '"tag"')
def tagged(request):
    return HttpResponse("tagged " * 100)


def cookies(request):
    response = HttpResponse("baked")
    for number in range(20):
        response.set_cookie(f"c{number}", "x" * 100, httponly=True, samesite="Lax")
    return response


def status(request, code):
    return HttpResponse(status=code)


def page(request):
    return HttpResponse("page " * 500, content_type="text/html; charset=utf-8")


def away(request):
    return HttpResponseRedirect("/echo/?from=away")


urlpatterns = [
    path("", home), path("echo/", echo), path("echo/<path:rest>", lambda request, rest: echo(request)), path("form/", form),
    path("upload/", upload), path("stream/", stream), path("download/", download), path("accelerated/", accelerated),
    path("fails/", fails), path("slow/", slow), path("tagged/", tagged), path("cookies/", cookies), path("page/", page),
    path("status/<int:code>/", status), path("away/", away),
]
application = get_wsgi_application()
