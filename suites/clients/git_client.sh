# A repository that is cloned, changed and pushed to over HTTP, by git itself.
set -u
export GIT_CONFIG_NOSYSTEM=1 GIT_TERMINAL_PROMPT=0 GIT_ADVICE=0
export GIT_AUTHOR_NAME=a GIT_AUTHOR_EMAIL=a@example.org GIT_COMMITTER_NAME=a GIT_COMMITTER_EMAIL=a@example.org
export GIT_AUTHOR_DATE='2026-01-01T00:00:00Z' GIT_COMMITTER_DATE='2026-01-01T00:00:00Z'
url="http://127.0.0.1:$1/git/repo.git"
say() { echo "$1: $2"; }
state() { git -C "$1" rev-parse HEAD 2>&1 | tail -1; }
git clone -q "$url" first 2>/dev/null; say "clone of nothing" $?
cd first && git checkout -q -b main
for n in 1 2 3 4 5; do echo "line $n" >> text; git add text; git commit -q -m "change $n"; done
git push -q origin main 2>/dev/null; say push $?
cd ..
git clone -q -b main "$url" second; say clone "$? $(state second)"
git clone -q -b main --depth 2 "$url" shallow; say shallow "$? $(git -C shallow rev-list --count HEAD)"
git -C shallow fetch -q --unshallow; say deeper "$? $(git -C shallow rev-list --count HEAD)"
# Larger than what git sends in one piece: it comes in chunks.
cd first
i=0; while [ $i -lt 200 ]; do printf '%s %s\n' "$i" "$(printf %s "$i" | sha256sum)" >> noise; i=$((i + 1)); done
head -c 6000000 /dev/zero | openssl enc -aes-128-ctr -K 00 -iv 00 2>/dev/null > large
git add . && git commit -q -m large
git -c http.postBuffer=65536 push -q origin main 2>/dev/null; say "push in chunks" $?
cd ../second && git pull -q; say pull "$? $(state .) $(sha256sum large | cut -c1-12)"
git tag -a -m tag v1 && git push -q origin v1 2>/dev/null; say tag $?
git push -q origin :refs/tags/v1 2>/dev/null; say "tag gone" $?
for b in a b c; do git branch $b; done; git push -q origin a b c 2>/dev/null; say branches "$? $(git ls-remote --heads origin | wc -l)"
# What others did first is not overwritten.
cd ../first && echo own >> text && git commit -q -a -m own && git push -q origin main; say "own push" $?
cd ../second && echo other >> text && git commit -q -a -m other
git push -q origin main 2>/dev/null; say "late push" $?
git push -q --force origin main 2>/dev/null; say "forced push" $?
for v in 0 1 2; do git -c protocol.version=$v ls-remote "$url" main | cut -f1 | sed "s/^/version $v: /"; done
git clone -q "http://127.0.0.1:$1/git/none.git" none 2>/dev/null; say "no repository" $?
git clone -q "http://127.0.0.1:$1/locked/repo.git" locked 2>/dev/null; say locked $?
git clone -q -b main "http://user:word@127.0.0.1:$1/locked/repo.git" locked 2>/dev/null; say unlocked "$? $(state locked)"
git -c http.extraHeader='Expect: 100-continue' ls-remote "$url" main | cut -f1 | sed 's/^/expects: /'
git clone -q --mirror "$url" mirror; say mirror "$? $(git -C mirror fsck 2>&1 | wc -l)"
