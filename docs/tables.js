// Gives each cell the name of its column, which book.css shows on a phone.
for (const table of document.querySelectorAll('.table-wrapper table')) {
  const names = [...table.querySelectorAll('th')].map((head) => head.textContent.trim())
  for (const row of table.querySelectorAll('tbody tr')) {
    for (const [column, cell] of [...row.cells].entries()) {
      if (names[column]) cell.dataset.column = names[column]
    }
  }
}
