// What the page can do beyond being read: sort its tables, unfold what is linked or printed.
// Nothing is hidden from a reader without scripts.
"use strict";
(() => {
  const collator = new Intl.Collator("en", { numeric: true });
  const spoken = document.createElement("p");
  spoken.className = "unseen";
  spoken.setAttribute("aria-live", "polite");
  document.body.append(spoken);

  function order(one, other) {
    const [a, b] = [Number(one), Number(other)];
    return Number.isNaN(a) || Number.isNaN(b) ? collator.compare(one, other) : a - b;
  }

  function sorted(rows, at, sign) {
    const key = (row) => row.cells[at].dataset.sort;
    const known = rows.filter((row) => key(row) !== "");
    const unknown = rows.filter((row) => key(row) === "");
    known.sort((one, other) => sign * order(key(one), key(other)));
    return [...known, ...unknown];
  }

  function makeSortable(table) {
    const body = table.tBodies[0];
    const rows = [...body.rows];
    const heads = [...table.tHead.rows[0].cells];
    if (rows.length < 2) return;
    heads.forEach((head, at) => {
      if (!rows.every((row) => "sort" in row.cells[at].dataset)) return;
      const button = document.createElement("button");
      button.type = "button";
      button.append(...head.childNodes);
      head.append(button);
      head.setAttribute("aria-sort", "none");
      button.addEventListener("click", () => {
        const before = head.getAttribute("aria-sort");
        const next = { none: "ascending", ascending: "descending", descending: "none" }[before];
        heads.forEach((other) => other.hasAttribute("aria-sort") && other.setAttribute("aria-sort", "none"));
        head.setAttribute("aria-sort", next);
        const sign = next === "descending" ? -1 : 1;
        body.append(...(next === "none" ? rows : sorted(rows, at, sign)));
        const how = next === "none" ? "in its first order" : `by ${button.textContent}, ${next}`;
        spoken.textContent = `Table sorted ${how}`;
      });
    });
  }

  // A box that has nothing to scroll is no stop for the Tab key.
  function stops() {
    for (const box of document.querySelectorAll(".scroll")) {
      if (box.scrollWidth > box.clientWidth) box.tabIndex = 0;
      else box.removeAttribute("tabindex");
    }
  }

  function unfold() {
    const place = location.hash && document.getElementById(location.hash.slice(1));
    const fold = place && place.closest("details");
    if (!fold) return;
    fold.open = true;
    place.scrollIntoView();
    place.focus({ preventScroll: true });
  }

  document.querySelectorAll(".scroll > table").forEach(makeSortable);
  stops();
  unfold();
  addEventListener("resize", stops);
  addEventListener("hashchange", unfold);
  addEventListener("beforeprint", () => {
    document.querySelectorAll("details:not([open])").forEach((fold) => {
      fold.open = true;
      addEventListener("afterprint", () => { fold.open = false; }, { once: true });
    });
  });
})();
