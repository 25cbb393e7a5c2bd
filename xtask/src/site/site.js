"use strict";
const find = (id) => document.getElementById(id);
const menu = find("menu"), navigation = find("navigation"), box = find("search"), results = find("results");

menu.onclick = () => menu.setAttribute("aria-expanded", navigation.classList.toggle("open"));
find("theme").onclick = () => {
  const isDark = getComputedStyle(document.documentElement).colorScheme === "dark" ||
    (document.documentElement.dataset.theme === "" && matchMedia("(prefers-color-scheme: dark)").matches);
  const theme = isDark ? "light" : "dark";
  document.documentElement.dataset.theme = theme;
  localStorage.setItem("theme", theme);
};
navigation.querySelector("[aria-current]")?.scrollIntoView({ block: "center" });

for (const heading of document.querySelectorAll("main :is(h2, h3)[id]")) {
  const link = document.createElement("a");
  link.className = "anchor"; link.href = "#" + heading.id; link.textContent = "#"; link.ariaLabel = "Link to this section";
  heading.append(link);
}
if (navigator.clipboard) for (const block of document.querySelectorAll("pre")) {
  const button = document.createElement("button"), text = block.textContent;
  button.className = "copy"; button.textContent = "Copy";
  button.onclick = () => navigator.clipboard.writeText(text).then(() => { button.textContent = "Copied"; });
  block.append(button);
}

// The words of all sections are loaded with the first search.
let sections, at = -1;
const load = () => sections ? Promise.resolve() : new Promise((done) => {
  const script = document.createElement("script");
  script.src = ROOT + "search.js";
  script.onload = () => { sections = SECTIONS.map(([page, anchor, title, text]) => ({ page, anchor, title, text, low: (title + " " + text).toLowerCase(), lowTitle: title.toLowerCase() })); done(); };
  document.head.append(script);
});
const escape = (text) => text.replace(/[&<>"]/g, (letter) => "&#" + letter.charCodeAt(0) + ";");
const marked = (text, words) => {
  const pattern = new RegExp("(" + words.map((word) => word.replace(/[^\w\s]/g, "\\$&")).join("|") + ")", "gi");
  return text.split(pattern).map((part, index) => index % 2 ? "<mark>" + escape(part) + "</mark>" : escape(part)).join("");
};
const score = (section, words, query) => {
  if (!words.every((word) => section.low.includes(word))) return 0;
  let points = 1;
  if (section.lowTitle === query || section.lowTitle === "$" + query) points += 100;
  else if (section.lowTitle.startsWith(query)) points += 40;
  else if (words.every((word) => section.lowTitle.includes(word))) points += 20;
  // Of directives that exist for each upstream protocol, proxy's is the one that is meant.
  if (/^(fastcgi|scgi|uwsgi|grpc|memcached|tunnel)_/.test(section.lowTitle) && !/^(fastcgi|scgi|uwsgi|grpc|memcached|tunnel)/.test(query)) points -= 4;
  // The guide explains, the reference lists, the design pages are for those who work on the source.
  if (section.page.startsWith("docs/guide")) points += 6;
  if (section.page.startsWith("docs/design") || section.page === "CHANGELOG.html") points -= 0.5;
  return points + Math.min(4, section.low.split(words[0]).length - 1) / 2;
};
const show = async () => {
  const query = box.value.trim().toLowerCase();
  at = -1;
  if (query.length < 2) { results.hidden = true; return; }
  await load();
  const words = query.split(/\s+/);
  const best = sections.map((section) => [score(section, words, query), section]).filter(([points]) => points > 0)
    .sort(([a], [b]) => b - a).slice(0, 20);
  results.innerHTML = best.map(([, section]) => {
    const start = Math.max(0, section.text.toLowerCase().indexOf(words[0]) - 50);
    const excerpt = (start ? "…" : "") + section.text.slice(start, start + 170);
    const place = section.page.replace(/\.html$/, "") + (section.anchor ? "#" + section.anchor : "");
    return `<a href="${ROOT}${section.page}${section.anchor ? "#" + section.anchor : ""}"><b>${marked(section.title, words)}</b> <small>${marked(excerpt, words)}</small><small>${escape(place)}</small></a>`;
  }).join("") || "<p>Nothing found.</p>";
  results.hidden = false;
};
box.oninput = show;
box.onfocus = show;
document.addEventListener("keydown", (event) => {
  const links = results.querySelectorAll("a");
  if (event.key === "/" && document.activeElement !== box) { event.preventDefault(); box.focus(); }
  else if (event.key === "Escape") { results.hidden = true; box.blur(); navigation.classList.remove("open"); }
  else if ((event.key === "ArrowDown" || event.key === "ArrowUp") && !results.hidden) {
    event.preventDefault();
    at = (at + (event.key === "ArrowDown" ? 1 : links.length - 1)) % links.length;
    links.forEach((link, index) => link.classList.toggle("at", index === at));
    links[at]?.scrollIntoView({ block: "nearest" });
  } else if (event.key === "Enter" && !results.hidden && document.activeElement === box) (links[at] || links[0])?.click();
});
document.addEventListener("click", (event) => { if (!results.contains(event.target) && event.target !== box) results.hidden = true; });
